-- Purpose: second step of a refill: writes PostgreSQL's tickets, oldest first, in several calls.
--
-- KEYS: as sale_begin
-- ARGV: 1 epoch   2 whether the sale asks for a pass (0|1): then each ticket has spent one
--       3 n; then for each ticket: order id, user, units, kind, when the hold lapsed (ms; 0: it did not)
--   kind "h"   live, units of this shard             "t"   ended
--        "bK"  live, lent by shard K                 "l"   lent by this shard to a buyer of another home shard
--        "e"   ended, lent by this shard to a buyer of another home shard
--
-- Replies: 1 done | 0 refused: another epoch is being filled, or this one is open, or a key is lost

local sale = redis.call('HMGET', sale_key, 'epoch', 'state')
if sale[1] ~= ARGV[1] or sale[2] ~= 'filling' or not is_whole() then return 0 end
local n = tonumber(ARGV[3])
if not n or n < 1 or n > 500 or #ARGV ~= 3 + 5 * n then return redis.error_reply('put_tickets: 1 to 500 tickets') end
local asks_pass = ARGV[2] == '1'
local ids, users = {}, {}
for i = 1, n do ids[i], users[i] = ARGV[5 * i - 1], ARGV[5 * i] end
local tickets_now = redis.call('HMGET', tickets_key, unpack(ids))
local buyers_now = redis.call('HMGET', buyers_key, unpack(users))
local passes_now = asks_pass and redis.call('HMGET', passes_key, unpack(users))

-- By order id, and by buyer. A later ticket sees the earlier ones of its buyer.
local tickets, buyers, passes, holders = {}, {}, {}, {}
for i = 1, n do
  local id, user, units, kind, lapsed_now = ids[i], users[i], ARGV[5 * i + 1], ARGV[5 * i + 2], tonumber(ARGV[5 * i + 3])
  -- A ticket counts once, also when a call is repeated after a time-out.
  if not tickets_now[i] and not tickets[id] then
    local lender = string.match(kind, '^b(%d+)$')
    local of_loan = lender and lender .. '|' or kind == 'l' and '0|' or ''
    tickets[id] = (lender and 'b' or kind == 'e' and 't' or kind) .. '|' .. units .. '|' .. of_loan .. user
    local is_guest = kind == 'l' or kind == 'e'
    if not is_guest then
      local owned, _, lapses, lapsed_at = read_buyer(buyers[user] or buyers_now[i])
      if kind == 'h' or lender then owned = owned + units end
      if lapsed_now > 0 then lapses, lapsed_at = lapses + 1, math.max(lapsed_at, lapsed_now) end
      buyers[user] = buyer_text(owned, id, lapses, lapsed_at)
      holders[#holders + 1] = user
      if asks_pass then passes[user] = (passes[user] or tonumber(passes_now[i] or 0)) + 1 end
    end
  end
end

---------------------------------------------------------------- changes from here on

local function write(key, values)
  local fields, last = {}, 0
  for name, value in pairs(values) do
    fields[last + 1], fields[last + 2] = name, value
    last = last + 2
  end
  if last > 0 then redis.call('HSET', key, unpack(fields)) end
end
write(tickets_key, tickets)
write(buyers_key, buyers)
write(passes_key, passes)
if #holders > 0 then redis.call('RPUSH', holders_key, unpack(holders)) end
return 1
