-- Purpose: holds units of this shard for buyers of other home shards (protocol, rule 15). Their home shards have checked the buyers and written
--          the loans. The writer of a loan calls this once.
--
-- KEYS: as sale_begin
-- ARGV: 1 epoch of the loans   2 how long the caller may remember this shard as empty, in ms (0: not at all)
--       3 the database's time in ms   4 n, 1 to 1000; then for each: order id, user, units, number of the loan
--
-- Replies: {code}: nothing was held (see sale_begin)
--   code -3  NOT_LENDING   another epoch is open here, or the sale is paused or closed
--          {epoch, expires_at_ms of the new holds, empty_ms, codes: a byte an order}
--   empty_ms: for this time no unit is on sale here; 0: unknown
--   code 0   HELD     units are held under this number
--   code 1   NO       too few units, or the number is barred, or the order has another ticket

local NOT_LENDING, HELD, NO = -3, 0, 1

local n = tonumber(ARGV[4])
if not n or n < 1 or n > 1000 or #ARGV ~= 4 + 4 * n then return redis.error_reply('lend: 1 to 1000 loans') end
local sale = redis.call('HMGET', sale_key, 'epoch', 'state', 'replid', 'server', 'stock', 'returning', 'clock_ms', 'pay_within_ms',
  'changes')
if not sale[1] then return { UNKNOWN_SALE } end
if sale[2] == 'filling' or not serves(sale[3], sale[4]) then return { REFILLING } end
if sale[1] ~= ARGV[1] or sale[2] ~= 'open' then return { NOT_LENDING } end

local database_now = tonumber(ARGV[3]) or 0
local now, earliest = sale_clock(sale[7], database_now)
local now_text = string.format('%.0f', now)
fields = { 'clock_ms', now_text }
local available, stock, aside, aside_until = read_stock(sale[5], sale[6], earliest)

---------------------------------------------------------------- changes from here on

local codes, lent = {}, 0
for i = 0, n - 1 do
  local id, user, units, number = ARGV[5 + i * 4], ARGV[6 + i * 4], tonumber(ARGV[7 + i * 4]), ARGV[8 + i * 4]
  local ticket = redis.call('HGET', tickets_key, id) or ''
  local text = 'l|' .. string.format('%d', units) .. '|' .. number .. '|' .. user
  local barred = string.match(ticket, '^x|(%d+)$')
  local is_free = ticket == '' or barred and tonumber(barred) < tonumber(number)
  codes[i + 1] = NO
  if ticket == text then
    codes[i + 1] = HELD
  elseif is_free and (available == -1 or available >= units) then
    if available ~= -1 then available = available - units end
    redis.call('HSET', tickets_key, id, text)
    redis.call('ZADD', unconfirmed_key, now_text, id)
    codes[i + 1], lent = HELD, lent + 1
  end
end

if available ~= stock then set('stock', available) end
if lent > 0 then set('changes', tonumber(sale[9] or 0) + lent) end

-- Rule 13: returned units stay aside while a caller may remember this shard as empty. This caller does not delay units that are aside already.
local empty_ms = 0
if available == 0 then
  local latest = math.max(now, database_now)
  empty_ms = tonumber(ARGV[2])
  if aside > 0 then
    empty_ms = math.max(0, math.min(empty_ms, aside_until - latest))
  elseif empty_ms > 0 then
    set_sold_out_until(latest + empty_ms)
  end
end
redis.call('HSET', sale_key, unpack(fields))
return { tonumber(sale[1]), now + tonumber(sale[8]), empty_ms, string.char(unpack(codes)) }
