-- Purpose: takes a lock (SET NX PX) and makes its fencing token, in one step.
--
-- KEYS: 1 lock (string: the holder's random id)   2 fence (string: the last token)
-- ARGV: 1 holder   2 lease in ms   3 how long the last token is remembered, in ms
--
-- Replies: the token, as a string | false: another holder has the lock
--
-- The token is the greater of the last token plus one and the server's time in microseconds. So tokens rise even after the server has lost
-- the last token, unless its clock was set back behind that token.

local lease, remember = tonumber(ARGV[2]), tonumber(ARGV[3])
if not lease or lease < 1 or not remember or remember < lease then
  return redis.error_reply('acquire_lock: the lease must be positive, and the memory no shorter')
end
local left = redis.call('PTTL', KEYS[1]) -- -2: no such key
if left ~= -2 then
  -- A longer time to live was set before the clock was set back.
  if left > lease then redis.call('PEXPIRE', KEYS[1], lease) end
  return false
end
local time = redis.call('TIME')
local last = tonumber(redis.call('GET', KEYS[2]) or 0)
-- Exact until the year 2255: below 2^53. Lua itself would write an exponent.
local token = string.format('%.0f', math.max(last + 1, time[1] * 1000000 + time[2]))

---------------------------------------------------------------- changes from here on

redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', lease)
redis.call('SET', KEYS[2], token, 'PX', remember)
return token
