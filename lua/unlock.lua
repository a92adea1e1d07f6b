-- Purpose: gives a lock back, for its holder alone. What is remembered of its token stays.
--
-- KEYS: 1 lock (string: the holder's random id)
-- ARGV: 1 holder
--
-- Replies: 1 done, 0 the lock is not this holder's (any more)

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end

---------------------------------------------------------------- changes from here on

return redis.call('DEL', KEYS[1])
