-- Purpose: last step of a refill: writes the terms and the stock of the sale, and opens it.
--
-- KEYS: as sale_begin
-- ARGV: 1 epoch   2 state (open|paused|closed)   3 stock (-1: unlimited)   4 n, then the ids of n waves in the stock; then pairs of field and
--       value, the terms: state_version, starts_at_ms, ends_at_ms, key, per_user, min_level, pay_within_ms, and
--       terms_version if it is not 0
--
-- Replies: 1 done | 0 refused: another epoch is being filled, or this one is open, or the server has lost the tickets

local sale = redis.call('HMGET', sale_key, 'epoch', 'state', 'replid', 'server')
if sale[1] ~= ARGV[1] or sale[2] ~= 'filling' or not serves(sale[3], sale[4]) then return 0 end
local stock = tonumber(ARGV[3])
if not stock or stock < -1 then return redis.error_reply('open_sale: stock must be -1 or more') end
local waves = tonumber(ARGV[4])

---------------------------------------------------------------- changes from here on

for i = 5, 4 + waves do redis.call('SADD', waves_key, ARGV[i]) end
-- The ledger's stock includes all returned units.
redis.call('HSET', sale_key, 'stock', stock, 'returning', 0, 'state', ARGV[2], unpack(ARGV, 5 + waves))
return 1
