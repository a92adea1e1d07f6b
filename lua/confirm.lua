-- Purpose: takes orders off the unconfirmed list, after their records are committed.
--
-- KEYS: 1 unconfirmed
-- ARGV: order ids, at least one, at most 1000
--
-- Replies: how many orders were on the list

if #ARGV < 1 or #ARGV > 1000 then return redis.error_reply('confirm: 1 to 1000 order ids') end

---------------------------------------------------------------- changes from here on

return redis.call('ZREM', KEYS[1], unpack(ARGV))
