-- Purpose: takes back open loans whose numbers are barred at their lenders (protocol, rule 15).
--
-- KEYS: as sale_begin
-- ARGV: 1 epoch of the loans; then for each of 1 to 500: order id, number of the loan
--
-- Replies: {code}: nothing was changed (see sale_begin)
--          {epoch, how many were taken back}

local n = (#ARGV - 1) / 2
if n < 1 or n > 500 or n ~= math.floor(n) then return redis.error_reply('take_back_loan: 1 to 500 loans') end
local sale = redis.call('HMGET', sale_key, 'epoch', 'state', 'replid', 'server')
if not sale[1] then return { UNKNOWN_SALE } end
if sale[2] == 'filling' or sale[1] ~= ARGV[1] or not serves(sale[3], sale[4]) then return { REFILLING } end

---------------------------------------------------------------- changes from here on

local taken_back = 0
for i = 0, n - 1 do
  local id = ARGV[2 + i * 2]
  local ticket = redis.call('HGET', tickets_key, id) or ''
  local number, user = string.match(ticket, '^o|%d+|%d+|(%d+)|(.*)$')
  if number == ARGV[3 + i * 2] then
    redis.call('HDEL', tickets_key, id)
    redis.call('ZREM', unconfirmed_key, id)
    redis.call('HDEL', loans_key, user)
    taken_back = taken_back + 1
  end
end
if taken_back > 0 then redis.call('HINCRBY', sale_key, 'changes', taken_back) end
return { tonumber(sale[1]), taken_back }
