-- Purpose: the beginning of reserve: its arguments, the sale at this moment, and the entries of the buyers. reserve.lua has the contract.

-- A local is faster to read than a global.
local ARGV = ARGV
local n = tonumber(ARGV[1])
if not n or n < 1 or n > 1000 or n ~= math.floor(n) then return redis.error_reply('reserve: 1 to 1000 buyers') end
-- The place before the first value of each part: the order id of buyer i, counted from 1, is ARGV[ids + i].
local ids, users, parts, at = 9, 9 + n, {}, 9 + 2 * n
if ARGV[9] ~= '' then
  local lengths = { b = 2, a = 2 + n, s = 2, u = n, f = n, p = 2 * n, l = n, v = 1 }
  for letter in string.gmatch(ARGV[9], '.') do parts[letter], at = at, at + lengths[letter] end
end
if #ARGV ~= at then return redis.error_reply('reserve: wrong number of arguments') end
local units_asked, flags, expiries, lenders = parts.u, parts.f, parts.p, parts.l

local sale = redis.call('HMGET', sale_key, 'epoch', 'state', 'replid', 'server', 'stock', 'returning', 'starts_at_ms', 'ends_at_ms',
  'per_user', 'pay_within_ms', 'clock_ms', 'changes', 'terms_version')
local epoch, state = sale[1], sale[2]
if not epoch then return { UNKNOWN_SALE } end
if state == 'filling' or not serves(sale[3], sale[4]) then return { REFILLING } end
-- The caller has not heard of a change of the terms yet, or this server has not.
if (sale[13] or '0') ~= (parts.v and ARGV[parts.v + 1] or '0') then return { REFILLING } end

local database_now = tonumber(ARGV[5]) or 0
local now, earliest = sale_clock(sale[11], database_now)
local now_text = string.format('%.0f', now)
local starts, ends, per_user, pay_within = tonumber(sale[7]), tonumber(sale[8]), tonumber(sale[9]), tonumber(sale[10])
fields = { 'clock_ms', now_text }
local available, stock, aside = read_stock(sale[5], sale[6], earliest)

-- The entries before this call, by i; then those of this call, which later buyers of the call see: tickets by order id, the others by user.
local tickets_now = redis.call('HMGET', tickets_key, unpack(ARGV, ids + 1, ids + n))
local buyers_now = redis.call('HMGET', buyers_key, unpack(ARGV, users + 1, users + n))
local passes_now = expiries and redis.call('HMGET', passes_key, unpack(ARGV, users + 1, users + n))
local loans_now = lenders and redis.call('HMGET', loans_key, unpack(ARGV, users + 1, users + n))
local tickets, buyers, passes, loans = {}, {}, {}, {}
