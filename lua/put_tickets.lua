-- Purpose: second step of a refill: writes the tickets that PostgreSQL has, oldest first, in several calls.
--
-- KEYS: 1 sale   2 tickets   3 buyers   4 holders   5 passes
-- ARGV: 1 epoch   2 whether the sale asks for a pass (0|1): then each ticket has spent one
--       3 n; then for each ticket: order id, user, units, kind, when the hold lapsed (ms; 0: it did not)
--   kind "h"   live, and its units are here      "t"   ended
--        "bK"  live, and lent by shard K          "l"   lent by this shard: its buyer has another home
--        "e"   ended, and its units were of this shard: its buyer has another home
--
-- Replies: 1 done | 0 refused: another epoch is being filled, or this one is open

local sale = redis.call('HMGET', KEYS[1], 'epoch', 'state')
if sale[1] ~= ARGV[1] or sale[2] ~= 'filling' then return 0 end
local n = tonumber(ARGV[3])
if not n or n < 1 or n > 500 then return redis.error_reply('put_tickets: 1 to 500 tickets') end

---------------------------------------------------------------- changes from here on

for i = 0, n - 1 do
  local at = 4 + i * 5
  local id, user, units, kind, lapsed_now = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], tonumber(ARGV[at + 4])
  local lender = string.match(kind, '^b(%d+)$')
  local is_guest = kind == 'l' or kind == 'e'
  local text = (lender and 'b' or kind == 'e' and 't' or kind) .. '|' .. units .. '|' .. user
  if lender then text = text .. '|' .. lender elseif kind == 'l' then text = text .. '|0' end
  -- A ticket that comes twice (a call was repeated after a time-out) counts once.
  if redis.call('HSETNX', KEYS[2], id, text) == 1 and not is_guest then
    local owned, _, lapses, lapsed_at = read_buyer(redis.call('HGET', KEYS[3], user))
    if kind == 'h' or lender then owned = owned + units end
    if lapsed_now > 0 then lapses, lapsed_at = lapses + 1, math.max(lapsed_at, lapsed_now) end
    redis.call('HSET', KEYS[3], user, buyer_text(owned, id, lapses, lapsed_at))
    redis.call('RPUSH', KEYS[4], user)
    if ARGV[2] == '1' then redis.call('HINCRBY', KEYS[5], user, 1) end
  end
end
return 1
