-- Purpose: takes a waiter out of a line that it does not want to stand in any more. Harmless twice.
--
-- KEYS: 1 line   2 waiters (see wait_in_line.lua)
-- ARGV: 1 waiter's id
--
-- Replies: 1 it stood there, 0 it did not

---------------------------------------------------------------- changes from here on

redis.call('HDEL', KEYS[2], ARGV[1])
return redis.call('ZREM', KEYS[1], ARGV[1])
