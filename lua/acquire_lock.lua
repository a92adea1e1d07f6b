-- Purpose: takes a lock (SET NX PX) and makes its fencing token, in one step.
--
-- The token is the greater of the last token plus one and this server's time in microseconds. So tokens rise even on a
-- server that has lost the last token, unless its clock has gone back behind that token.
--
-- KEYS: 1 lock (string: the holder's random id)   2 fence (string: the last token)
-- ARGV: 1 holder   2 lease in ms   3 how long the last token is remembered, in ms
--
-- A lock that has longer to live than a lease was taken before the clock went back. It gets one lease from now on.
--
-- Replies: the token, as a string | false: another holder has the lock

local lease, remember = tonumber(ARGV[2]), tonumber(ARGV[3])
if not lease or lease < 1 or not remember or remember < lease then
  return redis.error_reply('acquire_lock: the lease must be positive, and the memory no shorter')
end
local left = redis.call('PTTL', KEYS[1]) -- -2: no such key
if left ~= -2 then
  if left > lease then redis.call('PEXPIRE', KEYS[1], lease) end
  return false
end
local time = redis.call('TIME')
local last = tonumber(redis.call('GET', KEYS[2]) or 0)
-- Below 2^53, and so exact, until the year 2255. Formatted, because Lua would write it with an exponent.
local token = string.format('%.0f', math.max(last + 1, time[1] * 1000000 + time[2]))

---------------------------------------------------------------- changes from here on

redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', lease)
redis.call('SET', KEYS[2], token, 'PX', remember)
return token
