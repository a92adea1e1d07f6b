-- Purpose: takes units for a buyer, or asks another shard for them. reserve writes the changes at its end, in one command a key.

local RESERVED, SOLD_OUT, TOO_FEW_LEFT, BORROW = 0, 9, 10, 18

-- The values to write. If a buyer comes twice, the later text is written last.
local new_tickets, new_buyers, new_unconfirmed, new_holders, new_passes, taken = {}, {}, {}, {}, {}, 0
local new_loans, loan_number = {}, nil

-- Takes the units, which are here.
local function take(id, user, units, units_text, spent, owned, lapses, lapsed_at)
  if available ~= -1 then available = available - units end
  taken = taken + 1
  local here = 2 * taken
  tickets[id] = 'h|' .. units_text .. '|' .. user
  buyers[user] = buyer_text(owned == 0 and units_text or owned + units, id, lapses, lapsed_at)
  new_tickets[here - 1] = id; new_tickets[here] = tickets[id]
  new_buyers[here - 1] = user; new_buyers[here] = buyers[user]
  new_unconfirmed[here - 1] = now_text; new_unconfirmed[here] = id
  new_holders[taken] = user
  if spent then
    passes[user] = spent + 1
    new_passes[here - 1] = user; new_passes[here] = spent + 1
  end
  return RESERVED
end

-- Too few units are here for buyer i: a loan from the lender, if there is one to ask.
local function borrow(i, id, user, units_text)
  local lender = lenders and ARGV[lenders + i] or '-1'
  if lender == '-1' then return available == 0 and SOLD_OUT or TOO_FEW_LEFT end
  loan_number = (loan_number or tonumber(redis.call('HGET', sale_key, 'loan') or 0)) + 1
  local number = string.format('%.0f', loan_number)
  tickets[id] = 'o|' .. units_text .. '|' .. lender .. '|' .. number .. '|' .. user
  loans[user] = id
  new_loans[#new_loans + 1] = { id = id, user = user, ticket = tickets[id] }
  return BORROW, number
end
