-- Purpose: goes on at the home shard with refused loans: gives its own units if it has some now, or writes the next loan, or takes the loan
--          back (protocol, rule 15). It acts only on the loan with the given number.
--
-- KEYS: as sale_begin
-- ARGV: 1 epoch of the loans   2 the database's time in ms   3 whether the sale asks for passes (0|1)
--       4 n, 1 to 1000; then for each: order id, number of the loan, the next lender (-1: none)
--
-- Replies: {code}: nothing was changed (see sale_begin)
--          {epoch, expires_at_ms, codes, {number...}}
--   code 0   RESERVED       units of this shard were taken
--   code 9   SOLD_OUT       no unit is left here; the loan is taken back
--   code 10  TOO_FEW_LEFT   fewer than asked for; the loan is taken back
--   code 18  BORROW         a loan was written; the last list has its number
--   code 19  LOST           the order has no open loan with this number; nothing was changed
--   code 20  NOT_OPEN       the sale is paused or closed; the loan is taken back

local RESERVED, SOLD_OUT, TOO_FEW_LEFT, BORROW, LOST, NOT_OPEN = 0, 9, 10, 18, 19, 20

local n = tonumber(ARGV[4])
if not n or n < 1 or n > 1000 or #ARGV ~= 4 + 3 * n then return redis.error_reply('move_loan: 1 to 1000 loans') end
local sale = redis.call('HMGET', sale_key, 'epoch', 'state', 'replid', 'server', 'stock', 'returning', 'clock_ms', 'pay_within_ms',
  'changes', 'loan')
if not sale[1] then return { UNKNOWN_SALE } end
if sale[2] == 'filling' or sale[1] ~= ARGV[1] or not serves(sale[3], sale[4]) then return { REFILLING } end

local now, earliest = sale_clock(sale[7], tonumber(ARGV[2]) or 0)
local now_text = string.format('%.0f', now)
fields = { 'clock_ms', now_text }
local available, stock = read_stock(sale[5], sale[6], earliest)
local number = tonumber(sale[10] or 0)

---------------------------------------------------------------- changes from here on

local function take(id, units, user)
  available = available - units
  local owned, _, lapses, lapsed_at = read_buyer(redis.call('HGET', buyers_key, user))
  redis.call('HSET', tickets_key, id, 'h|' .. units .. '|' .. user)
  redis.call('HSET', buyers_key, user, buyer_text(owned + units, id, lapses, lapsed_at))
  redis.call('ZADD', unconfirmed_key, now_text, id)
  redis.call('RPUSH', holders_key, user)
  redis.call('HDEL', loans_key, user)
  if ARGV[3] == '1' then redis.call('HINCRBY', passes_key, user, 1) end
end

local codes, numbers, changes = {}, {}, 0
for i = 0, n - 1 do
  local id, lender = ARGV[5 + i * 3], ARGV[7 + i * 3]
  local ticket = redis.call('HGET', tickets_key, id) or ''
  local units, of, user = string.match(ticket, '^o|(%d+)|%d+|(%d+)|(.*)$')
  if of ~= ARGV[6 + i * 3] then
    codes[i + 1] = LOST
  else
    changes = changes + 1
    if sale[2] == 'open' and available >= tonumber(units) then
      take(id, units, user)
      codes[i + 1] = RESERVED
    elseif sale[2] == 'open' and lender ~= '-1' then
      number = number + 1
      redis.call('HSET', tickets_key, id, string.format('o|%s|%s|%.0f|%s', units, lender, number, user))
      redis.call('ZADD', unconfirmed_key, now_text, id)
      codes[i + 1] = BORROW
      numbers[#numbers + 1] = number
    else
      redis.call('HDEL', tickets_key, id)
      redis.call('ZREM', unconfirmed_key, id)
      redis.call('HDEL', loans_key, user)
      codes[i + 1] = sale[2] ~= 'open' and NOT_OPEN or available == 0 and SOLD_OUT or TOO_FEW_LEFT
    end
  end
end

set('loan', string.format('%.0f', number))
set('changes', tonumber(sale[9] or 0) + changes)
if available ~= stock then set('stock', available) end
redis.call('HSET', sale_key, unpack(fields))
return { tonumber(sale[1]), now + tonumber(sale[8]), string.char(unpack(codes)), numbers }
