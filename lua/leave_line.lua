-- Purpose: removes a waiter from a line. A second call does nothing.
--
-- KEYS: 1 line   2 permits   3 asked (see wait_in_line.lua)
-- ARGV: 1 waiter's id
--
-- Replies: 1 the waiter was in the line | 0 it was not

---------------------------------------------------------------- changes from here on

redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
return redis.call('ZREM', KEYS[1], ARGV[1])
