-- Purpose: reads the holds that have been unconfirmed for a while, and their epoch, in one step. Between two steps, a server that lost its last
--          writes would give an old hold a new epoch.
--
-- KEYS: as sale_begin
-- ARGV: 1 age in ms   2 the most holds to return (1 to 1000)   3 the database's time in ms   4 how many of the oldest to skip
--
-- Replies: {}: the sale is not served here
--          {epoch, order id, ticket, order id, ticket...}   oldest first

local sale = redis.call('HMGET', sale_key, 'epoch', 'state', 'clock_ms', 'replid', 'server')
if not sale[1] or sale[2] == 'filling' or not serves(sale[4], sale[5]) then return {} end
local limit = tonumber(ARGV[2])
if not limit or limit < 1 or limit > 1000 then return redis.error_reply('read_unconfirmed: 1 to 1000 at most') end
local before = sale_clock(sale[3], tonumber(ARGV[3]) or 0) - tonumber(ARGV[1])
local passed_over = tonumber(ARGV[4]) or 0
local reply = { sale[1] }
for _, id in ipairs(redis.call('ZRANGEBYSCORE', unconfirmed_key, '-inf', string.format('%.0f', before), 'LIMIT', passed_over, limit)) do
  local ticket = redis.call('HGET', tickets_key, id)
  if ticket then reply[#reply + 1] = id; reply[#reply + 1] = ticket end
end
return reply
