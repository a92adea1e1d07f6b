-- Purpose: closes open loans of purchases with a record: counts their units, spends the passes, and adds the holders (protocol, rules 5
--          and 15). A second call does nothing.
--
-- KEYS: as sale_begin
-- ARGV: 1 whether the sale asks for passes (0|1); then 1 to 1000 order ids
--
-- Replies: how many loans were closed; 0 when a key of the sale is lost

if #ARGV < 2 or #ARGV > 1001 then return redis.error_reply('close_loan: 1 to 1000 order ids') end
if not is_whole() then return 0 end

---------------------------------------------------------------- changes from here on

local closed = 0
for i = 2, #ARGV do
  local id = ARGV[i]
  local ticket = redis.call('HGET', tickets_key, id) or ''
  local units, lender, user = string.match(ticket, '^o|(%d+)|(%d+)|%d+|(.*)$')
  if units then
    local owned, _, lapses, lapsed_at = read_buyer(redis.call('HGET', buyers_key, user))
    redis.call('HSET', tickets_key, id, 'b|' .. units .. '|' .. lender .. '|' .. user)
    redis.call('HSET', buyers_key, user, buyer_text(owned + units, id, lapses, lapsed_at))
    redis.call('ZREM', unconfirmed_key, id)
    redis.call('RPUSH', holders_key, user)
    redis.call('HDEL', loans_key, user)
    if ARGV[1] == '1' then redis.call('HINCRBY', passes_key, user, 1) end
    closed = closed + 1
  end
end
if closed > 0 then redis.call('HINCRBY', sale_key, 'changes', closed) end
return closed
