-- Purpose: closes open loans whose purchases have a record: counts their units, spends the passes, and adds the holders (protocol, rules
--          5 and 15). What is no open loan is left as it is, so that a second call does nothing.
--
-- KEYS: 1 sale   2 tickets   3 buyers   4 unconfirmed   5 holders   6 loans   7 passes
-- ARGV: 1 whether the sale asks for passes (0|1); then 1 to 1000 order ids
--
-- Replies: how many loans were closed

if #ARGV < 2 or #ARGV > 1001 then return redis.error_reply('close_loan: 1 to 1000 order ids') end

---------------------------------------------------------------- changes from here on

local closed = 0
for i = 2, #ARGV do
  local id = ARGV[i]
  local ticket = redis.call('HGET', KEYS[2], id) or ''
  local units, user, lender = string.match(ticket, '^o|(%d+)|([^|]*)|(%d+)|%d+$')
  if units then
    local owned, _, lapses, lapsed_at = read_buyer(redis.call('HGET', KEYS[3], user))
    redis.call('HSET', KEYS[2], id, 'b|' .. units .. '|' .. user .. '|' .. lender)
    redis.call('HSET', KEYS[3], user, buyer_text(owned + units, id, lapses, lapsed_at))
    redis.call('ZREM', KEYS[4], id)
    redis.call('RPUSH', KEYS[5], user)
    redis.call('HDEL', KEYS[6], user)
    if ARGV[1] == '1' then redis.call('HINCRBY', KEYS[7], user, 1) end
    closed = closed + 1
  end
end
if closed > 0 then redis.call('HINCRBY', KEYS[1], 'changes', closed) end
return closed
