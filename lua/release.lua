-- Purpose: ends holds of one sale. Each hold leaves a tombstone, so that its id is never sold again, and its units
--          return for sale where asked to. The script acts on live holds only, so that a second call does nothing.
--
-- KEYS: 1 sale   2 tickets   3 buyers   4 unconfirmed
-- ARGV: 1 n; then for each order: order id, whether its units return (1|0), when nobody had paid for it in time (ms; 0: it
--       ended otherwise)
--
-- Replies: {code}: ask again later (sale_begin has the codes)
--          {epoch, number of holds that were live}

local sale = redis.call('HMGET', KEYS[1], 'epoch', 'state', 'stock', 'replid', 'server')
if not sale[1] then return { UNKNOWN_SALE } end
if sale[2] == 'filling' or not serves(KEYS[1], sale[4], sale[5]) then return { REFILLING } end
local n = tonumber(ARGV[1])

---------------------------------------------------------------- changes from here on

local released, back = 0, 0
for i = 0, n - 1 do
  local id, returns, lapsed_now = ARGV[2 + i * 3], ARGV[3 + i * 3], tonumber(ARGV[4 + i * 3])
  local ticket = redis.call('HGET', KEYS[2], id)
  if ticket then
    local kind, units, user = string.match(ticket, '^(%a)|(%d+)|(.*)$')
    if kind == 'h' then
      redis.call('HSET', KEYS[2], id, 't|' .. units .. '|' .. user)
      redis.call('ZREM', KEYS[4], id)
      local buyer = redis.call('HGET', KEYS[3], user)
      if buyer then
        local owned, newest, lapses, lapsed_at = read_buyer(buyer)
        if lapsed_now > 0 then lapses, lapsed_at = lapses + 1, math.max(lapsed_at, lapsed_now) end
        redis.call('HSET', KEYS[3], user, buyer_text(math.max(0, owned - units), newest, lapses, lapsed_at))
      end
      released = released + 1
      if returns == '1' then back = back + tonumber(units) end
    end
  end
end

if released > 0 then redis.call('HINCRBY', KEYS[1], 'changes', released) end
if back > 0 and sale[3] ~= '-1' then keep_back(KEYS[1], back) end
return { tonumber(sale[1]), released }
