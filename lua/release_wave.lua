-- Purpose: puts the units of a wave up for sale, once an epoch.
--
-- KEYS: as sale_begin
-- ARGV: 1 wave id   2 units
--
-- Replies: {code}: ask again later (see sale_begin)
--          {epoch, 1 applied | 0 applied before}

local sale = redis.call('HMGET', sale_key, 'epoch', 'state', 'stock', 'replid', 'server')
if not sale[1] then return { UNKNOWN_SALE } end
if sale[2] == 'filling' or not serves(sale[4], sale[5]) then return { REFILLING } end
local units = tonumber(ARGV[2])
if not units or units < 1 then return redis.error_reply('release_wave: units must be positive') end
local epoch = tonumber(sale[1])
if sale[3] == '-1' then return { epoch, 0 } end

---------------------------------------------------------------- changes from here on

if redis.call('SADD', waves_key, ARGV[1]) == 0 then return { epoch, 0 } end
keep_back(units)
return { epoch, 1 }
