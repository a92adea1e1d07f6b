-- Purpose: puts the units of a wave up for sale, once an epoch, however often it is called.
--
-- KEYS: 1 sale   2 waves (set: ids of the waves that this epoch's stock contains)
-- ARGV: 1 wave id   2 units
--
-- Replies: {code}: ask again later (sale_begin has the codes)
--          {epoch, 1 applied | 0 applied before}

local sale = redis.call('HMGET', KEYS[1], 'epoch', 'state', 'stock', 'returning', 'returning_at_ms',
  'sold_out_until_ms', 'clock_ms', 'replid', 'server')
if not sale[1] then return { UNKNOWN_SALE } end
if sale[2] == 'filling' or not serves(KEYS[1], sale[8], sale[9]) then return { REFILLING } end
local units = tonumber(ARGV[2])
if not units or units < 1 then return redis.error_reply('release_wave: units must be positive') end
local now = sale_clock(sale[7], 0)
local stock, returning = tonumber(sale[3]), tonumber(sale[4] or 0)
local returning_at, sold_out_until = tonumber(sale[5] or 0), tonumber(sale[6] or 0)
local epoch = tonumber(sale[1])
if stock == -1 then return { epoch, 0 } end

---------------------------------------------------------------- changes from here on

if redis.call('SADD', KEYS[2], ARGV[1]) == 0 then return { epoch, 0 } end
if returning > 0 and now >= returning_at then stock, returning = stock + returning, 0 end
if now < sold_out_until then
  -- An instance may still remember "sold out". These units are kept back until none does (protocol, rule 13).
  redis.call('HSET', KEYS[1], 'stock', stock, 'returning', returning + units,
    'returning_at_ms', returning > 0 and returning_at or sold_out_until, 'clock_ms', now)
else
  redis.call('HSET', KEYS[1], 'stock', stock + units, 'returning', returning, 'clock_ms', now)
end
return { epoch, 1 }
