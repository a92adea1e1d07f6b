-- Purpose: asks a lender whether it holds units under loans of dead requests, and bars the others: nothing is lent under this number or an
--          earlier one any more (protocol, rule 15). Then the home shard may take the loan back.
--
-- KEYS: as sale_begin
-- ARGV: 1 epoch of the loans; then for each of 1 to 500: order id, number of the loan (-1: only ask, and bar nothing)
--
-- Replies: {code}: nothing was changed (see sale_begin; -3 as in lend)
--          {epoch, codes}
--   code 0   BARRED   there is no lent hold, and the number is barred (-1: nothing is barred)
--   code 1   HELD     there is a lent hold
--   code 2   ENDED    the order has ended

local NOT_LENDING, BARRED, HELD, ENDED = -3, 0, 1, 2

local n = (#ARGV - 1) / 2
if n < 1 or n > 500 or n ~= math.floor(n) then return redis.error_reply('bar_loan: 1 to 500 loans') end
local sale = redis.call('HMGET', sale_key, 'epoch', 'state', 'replid', 'server')
if not sale[1] then return { UNKNOWN_SALE } end
if sale[2] == 'filling' or not serves(sale[3], sale[4]) then return { REFILLING } end
if sale[1] ~= ARGV[1] then return { NOT_LENDING } end

---------------------------------------------------------------- changes from here on

local codes = {}
for i = 0, n - 1 do
  local id, number = ARGV[2 + i * 2], tonumber(ARGV[3 + i * 2])
  local ticket = redis.call('HGET', tickets_key, id) or ''
  local kind, barred = string.match(ticket, '^(%a)|(%d+)')
  if kind == 'l' then
    codes[i + 1] = HELD
  elseif kind == 't' then
    codes[i + 1] = ENDED
  else
    codes[i + 1] = BARRED
    if number > tonumber(barred or -1) then redis.call('HSET', tickets_key, id, string.format('x|%.0f', number)) end
  end
end
return { tonumber(sale[1]), string.char(unpack(codes)) }
