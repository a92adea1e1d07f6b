-- Purpose: ends holds of one sale. Each hold leaves a tombstone, so that its id is never sold again, and its units
--          return for sale where asked to. The script acts on live holds only, so that a second call does nothing.
--
-- KEYS: 1 sale   2 tickets   3 buyers   4 unconfirmed
-- ARGV: 1 n; then for each order: order id, whether its units return (1|0)
--
-- Replies: {code}: ask again later (sale_begin has the codes)
--          {epoch, number of holds that were live}

local sale = redis.call('HMGET', KEYS[1], 'epoch', 'state', 'stock', 'returning', 'returning_at_ms',
  'sold_out_until_ms', 'clock_ms', 'replid', 'server')
if not sale[1] then return { UNKNOWN_SALE } end
if sale[2] == 'filling' or not serves(KEYS[1], sale[8], sale[9]) then return { REFILLING } end
local n = tonumber(ARGV[1])
local now = sale_clock(sale[7], 0)
local stock, returning = tonumber(sale[3]), tonumber(sale[4] or 0)
local returning_at, sold_out_until = tonumber(sale[5] or 0), tonumber(sale[6] or 0)

---------------------------------------------------------------- changes from here on

local released, back = 0, 0
for i = 0, n - 1 do
  local id, returns = ARGV[2 + i * 2], ARGV[3 + i * 2]
  local ticket = redis.call('HGET', KEYS[2], id)
  if ticket then
    local kind, units, user = string.match(ticket, '^(%a)|(%d+)|(.*)$')
    if kind == 'h' then
      redis.call('HSET', KEYS[2], id, 't|' .. units .. '|' .. user)
      redis.call('ZREM', KEYS[4], id)
      local buyer = redis.call('HGET', KEYS[3], user)
      if buyer then
        local owned, newest = string.match(buyer, '^(%d+)|(.*)$')
        redis.call('HSET', KEYS[3], user, math.max(0, owned - units) .. '|' .. newest)
      end
      released = released + 1
      if returns == '1' then back = back + tonumber(units) end
    end
  end
end

if released > 0 then redis.call('HINCRBY', KEYS[1], 'changes', released) end
if back > 0 and stock ~= -1 then
  if returning > 0 and now >= returning_at then stock, returning = stock + returning, 0 end
  if now < sold_out_until then
    -- An instance may still remember "sold out". These units are kept back until none does (protocol, rule 13).
    redis.call('HSET', KEYS[1], 'stock', stock, 'returning', returning + back,
      'returning_at_ms', returning > 0 and returning_at or sold_out_until, 'clock_ms', now)
  else
    redis.call('HSET', KEYS[1], 'stock', stock + back, 'returning', returning, 'clock_ms', now)
  end
end
return { tonumber(sale[1]), released }
