-- Purpose: the answer to an order that has a ticket.

local REPEAT, REPEAT_ENDED, MISMATCH, OPEN_LOAN = 1, 2, 3, 16

local function answer_repeat(ticket, id, units)
  local kind, held = string.match(ticket, '^(%a)|(%d+)|')
  if tonumber(held) ~= units then return MISMATCH end
  if kind == 't' then return REPEAT_ENDED end
  if kind == 'o' then return OPEN_LOAN, string.match(ticket, '^o|%d+|(%d+|%d+)|') end
  local unconfirmed = tickets[id] or redis.call('ZSCORE', unconfirmed_key, id)
  return REPEAT, unconfirmed and 'u' or 'c'
end
