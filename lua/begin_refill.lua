-- Purpose: first step of a refill: stops the sale and deletes its keys here. The counts of the limits stay: a refill lets no refused buyer pass.
--
-- KEYS: as sale_begin
-- ARGV: 1 epoch of the refill   2 "close": only stop the sale, and delete nothing
--
-- Replies: 1 done | 0 refused: this server has that epoch or a newer one; to close: it has another epoch

local epoch = tonumber(ARGV[1])
if not epoch then return redis.error_reply('begin_refill: epoch is not a number') end
local found = redis.pcall('HGET', sale_key, 'epoch') -- an error: the key is no hash, and is deleted, too
local held = type(found) == 'string' and tonumber(found) or -1
local close_only = ARGV[2] == 'close'
if close_only and held ~= epoch then return 0 end
if not close_only and held >= epoch then return 0 end

---------------------------------------------------------------- changes from here on

if close_only then
  redis.call('HSET', sale_key, 'state', 'filling')
else
  redis.call('UNLINK', unpack(KEYS))
  -- `serves` compares these ids: the refill is void after a loss of memory.
  redis.call('HSET', sale_key, 'epoch', epoch, 'state', 'filling', 'replid', (replication_ids()), 'server', this_server() or '')
  for _, hash in ipairs({ tickets_key, buyers_key, passes_key, loans_key }) do redis.call('HSET', hash, '', '') end
  redis.call('ZADD', unconfirmed_key, '+inf', '')
  redis.call('RPUSH', holders_key, '')
  redis.call('SADD', waves_key, '')
end
return 1
