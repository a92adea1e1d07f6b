-- Purpose: takes orders with a committed record off the unconfirmed list.
--
-- KEYS: 1 unconfirmed
-- ARGV: 1 to 1000 order ids
--
-- Replies: how many orders were on the list

if #ARGV < 1 or #ARGV > 1000 then return redis.error_reply('confirm: 1 to 1000 order ids') end

---------------------------------------------------------------- changes from here on

return redis.call('ZREM', KEYS[1], unpack(ARGV))
