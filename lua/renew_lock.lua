-- Purpose: prolongs a lock for its holder, and stores its token: this server makes no lower one.
--
-- KEYS: 1 lock (string: the holder's random id)   2 fence (string: the last token)
-- ARGV: 1 holder   2 lease in ms   3 how long the last token is remembered, in ms   4 token
--
-- Replies: 1 done | 0 this holder does not have the lock

local lease, remember, token = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if not lease or lease < 1 or not remember or remember < lease or not token or token < 1 then
  return redis.error_reply('renew_lock: lease, memory and token must be positive')
end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local last = tonumber(redis.call('GET', KEYS[2])) or 0

---------------------------------------------------------------- changes from here on

redis.call('PEXPIRE', KEYS[1], lease)
redis.call('SET', KEYS[2], string.format('%.0f', math.max(last, token)), 'PX', remember)
return 1
