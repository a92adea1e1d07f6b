-- Purpose: gives a lock back, or prolongs it, for its holder alone.
--
-- KEYS: 1 lock (string: the holder's random id)
-- ARGV: 1 holder   2 lease in ms to prolong to; 0 gives the lock back
--
-- Replies: 1 done, 0 the lock is not this holder's (any more)

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end

---------------------------------------------------------------- changes from here on

if tonumber(ARGV[2]) > 0 then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return redis.call('DEL', KEYS[1])
