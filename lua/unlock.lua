-- Purpose: gives a lock back for its holder. The server keeps the last token.
--
-- KEYS: 1 lock (string: the holder's random id)
-- ARGV: 1 holder
--
-- Replies: 1 done | 0 this holder does not have the lock

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end

---------------------------------------------------------------- changes from here on

return redis.call('DEL', KEYS[1])
