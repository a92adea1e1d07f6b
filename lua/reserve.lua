-- Purpose: takes units of one sale for one or many buyers, in the order given. It is the only script that sells (protocol, rule 10).
--
-- KEYS: as sale_begin, and 9 limit of buyers   10 limit of addresses   11 limit of the sale
--         (hashes of counts in the current window; '#' is "window|its width in ms"); unused without such a limit
--
-- ARGV: 1 n, 1 to 1000   2 epoch and 3 length up to which the caller knows the holders
--       4 sold_out_ms: how long the caller may remember "sold out" (0: not at all)   5 the database's time in ms
--       6 whether to return the holders although units are left (0|1)
--       7 lapses_max (-1: no limit)   8 lapse_wait_ms: how long a buyer with lapses_max lapses waits after the last one
--       9 the letters of the parts after the users, in order. Default values are not sent.
--       10 on: n order ids; n users; then the parts:
--         b   the limit of buyers: the number, the window in ms
--         a   the limit of addresses: the number, the window in ms, n addresses
--         s   the limit of the sale: the number, the window in ms
--         u   n numbers of units; by default 1
--         f   n flags: 1 wrong purchase key, 2 level too low, 3 both, 0 neither; by default 0. The caller compares them with the sale's,
--             which never change
--         p   the sale asks for a pass: n times in ms when the buyers' passes expire (0: no pass), then n numbers of passes that each buyer had
--             spent when the pass was earned
--         l   the sale has shards, and this is the buyers' home shard: n lenders to ask if this shard has too few units (-1: none)
--
-- Replies: {code}: the sale is not served here (see sale_begin)
--          {epoch, now_ms, memory, holders_known, {holders...}, expires_at_ms, codes, {place, detail, place, detail...}}
--   expires_at_ms: of all new holds   codes: a byte a buyer, in order   details: of codes with a detail; places count from 0
--   memory 0 the caller does not know all holders   1 it knows all   2 and may remember "sold out"
--   code 0   RESERVED       units were taken
--   code 1   REPEAT         the order exists; detail: "u" unconfirmed, "c" confirmed
--   code 2   REPEAT_ENDED   the order exists and has ended
--   code 3   MISMATCH       the order exists with other units
--   code 4   AT_LIMIT       the buyer holds per_user units; detail: the newest order
--   code 5   NOT_STARTED
--   code 6   ENDED
--   code 7   WRONG_KEY
--   code 8   LEVEL_TOO_LOW
--   code 9   SOLD_OUT       no unit is left
--   code 10  TOO_FEW_LEFT   fewer units are left than asked for
--   code 11  LIMITED        a limit refused; detail: "limit|retry_ms"
--   code 12  PAUSED
--   code 13  BAD_UNITS      units are not a positive whole number
--   code 14  LAPSED         the buyer let holds lapse; detail: retry_ms
--   code 15  PASS_INVALID   the sale asks for a pass, and the pass is missing, expired or spent
--   code 16  OPEN_LOAN      the order has an open loan; detail: "lender|number"
--   code 17  UNDER_WAY      another order of the buyer has an open loan
--   code 18  BORROW         a loan was written; detail: its number
--   With the part l, the holders of memory 1 and 2 include all buyers with an open loan.
--
-- A pass must have the number of passes that its buyer has spent, and each hold raises the number. So no pass is spent without a hold, and
-- none buys two.

local RESERVED, REPEAT, REPEAT_ENDED, MISMATCH, AT_LIMIT, NOT_STARTED, ENDED = 0, 1, 2, 3, 4, 5, 6
local WRONG_KEY, LEVEL_TOO_LOW, SOLD_OUT, TOO_FEW_LEFT, LIMITED, PAUSED, BAD_UNITS, LAPSED = 7, 8, 9, 10, 11, 12, 13, 14
local PASS_INVALID, OPEN_LOAN, UNDER_WAY, BORROW = 15, 16, 17, 18
-- They bound the reply. A caller without all holders asks again before it may remember "sold out".
local HOLDERS_CHUNK = 10000
local BORROWERS_MAX = 2000

local n = tonumber(ARGV[1])
if not n or n < 1 or n > 1000 or n ~= math.floor(n) then return redis.error_reply('reserve: 1 to 1000 buyers') end
-- The place before the first value of each part: the order id of buyer i, counted from 1, is ARGV[ids + i].
local ids, users, parts, at = 9, 9 + n, {}, 9 + 2 * n
local lengths = { b = 2, a = 2 + n, s = 2, u = n, f = n, p = 2 * n, l = n }
for letter in string.gmatch(ARGV[9], '.') do parts[letter], at = at, at + lengths[letter] end
if #ARGV ~= at then return redis.error_reply('reserve: wrong number of arguments') end
local addresses, units_asked, flags = parts.a and parts.a + 2, parts.u, parts.f
local expiries, spent_before, lenders = parts.p, parts.p and parts.p + n, parts.l

local sale = redis.call('HMGET', sale_key, 'epoch', 'state', 'replid', 'server', 'stock', 'returning', 'starts_at_ms', 'ends_at_ms',
  'per_user', 'pay_within_ms', 'clock_ms', 'changes')
local epoch, state = sale[1], sale[2]
if not epoch then return { UNKNOWN_SALE } end
if state == 'filling' or not serves(sale[3], sale[4]) then return { REFILLING } end

local database_now = tonumber(ARGV[5]) or 0
local now, earliest = sale_clock(sale[11], database_now)
local now_text = string.format('%.0f', now)
local stock, returning = tonumber(sale[5]), tonumber(sale[6] or 0)
local starts, ends, per_user, pay_within = tonumber(sale[7]), tonumber(sale[8]), tonumber(sale[9]), tonumber(sale[10])
local lapses_max, lapse_wait = tonumber(ARGV[7]), tonumber(ARGV[8])
local unlimited = stock == -1

-- Returned units are for sale again when no instance may remember "sold out" any more (rule 13).
local came_back = 0
if returning > 0 and earliest >= tonumber(redis.call('HGET', sale_key, 'returning_at_ms') or 0) then came_back = returning end

local tickets_now = redis.call('HMGET', tickets_key, unpack(ARGV, ids + 1, ids + n))
local buyers_now = redis.call('HMGET', buyers_key, unpack(ARGV, users + 1, users + n))
local passes_now = expiries and redis.call('HMGET', passes_key, unpack(ARGV, users + 1, users + n))
local loans_now = lenders and redis.call('HMGET', loans_key, unpack(ARGV, users + 1, users + n))

-- Opens the window of the limit in the part at `terms`, if there is one. Its counts are read and written once a call.
local function open_limit(limit_key, terms, fields, first, last)
  if not terms then return nil end
  local l = { key = limit_key, max = tonumber(ARGV[terms + 1]), window_ms = tonumber(ARGV[terms + 2]), counts = {} }
  l.found = redis.call('HMGET', limit_key, '#', unpack(fields, first, last))
  local stored, width = string.match(l.found[1] or '', '^(%d+)|(%d+)$')
  stored, width = tonumber(stored), tonumber(width)
  l.window = math.floor(now / l.window_ms)
  if stored and width ~= l.window_ms then
    -- The policy has changed. Counts of a window of another width stay if it overlaps the current window.
    stored = (stored + 1) * width > l.window * l.window_ms and l.window or nil
    l.changed_width = true
  end
  l.window = math.max(l.window, stored or -1)
  l.fresh = l.window ~= stored
  if l.fresh then l.found = {} end
  return l
end
local by_buyer = open_limit(KEYS[9], parts.b, ARGV, users + 1, users + n)
local by_address = open_limit(KEYS[10], parts.a, ARGV, addresses and addresses + 1, addresses and addresses + n)
local by_sale = open_limit(KEYS[11], parts.s, { 'n' }, 1, 1)
local has_limits = by_buyer or by_address or by_sale

-- The count of a field, including this call; `i` is its place among the fields.
local function counted(l, field, i) return l.counts[field] or tonumber(l.found[i + 1]) or 0 end
local function refusal(name, l) return name .. '|' .. string.format('%.0f', (l.window + 1) * l.window_ms - now) end

-- The detail of the limit that refuses buyer i. Without a refusal, all limits count the request.
local function limited(i, user)
  local of_buyer = by_buyer and counted(by_buyer, user, i)
  if by_buyer and of_buyer >= by_buyer.max then return refusal('buyer', by_buyer) end
  local address = by_address and ARGV[addresses + i]
  local of_address = by_address and counted(by_address, address, i)
  if by_address and of_address >= by_address.max then return refusal('address', by_address) end
  local of_sale = by_sale and counted(by_sale, 'n', 1)
  if by_sale and of_sale >= by_sale.max then return refusal('sale', by_sale) end
  if by_buyer then by_buyer.counts[user] = of_buyer + 1 end
  if by_address then by_address.counts[address] = of_address + 1 end
  if by_sale then by_sale.counts.n = of_sale + 1 end
end

-- Decides for one buyer after another: later ones see the units that earlier ones took. Nothing is written yet.
local available = unlimited and -1 or stock + came_back
local tickets, buyers, passes, taken = {}, {}, {}, 0
-- The values to write. If a buyer comes twice, the later text is written last.
local new_tickets, new_buyers, new_unconfirmed, new_holders, new_passes = {}, {}, {}, {}, {}
local loans, new_loans, loan_number = {}, {}, nil

-- Writes a loan from this lender for a buyer: too few units are here.
local function borrow(id, user, units_text, lender)
  loan_number = (loan_number or tonumber(redis.call('HGET', sale_key, 'loan') or 0)) + 1
  local number = string.format('%.0f', loan_number)
  tickets[id] = 'o|' .. units_text .. '|' .. user .. '|' .. lender .. '|' .. number
  loans[user] = id
  new_loans[#new_loans + 1] = { id = id, user = user, ticket = tickets[id] }
  return BORROW, number
end

local function decide(i)
  local id, user, units, units_text = ARGV[ids + i], ARGV[users + i], 1, '1'
  if units_asked then
    units = tonumber(ARGV[units_asked + i])
    if not units or units < 1 or units ~= math.floor(units) then return BAD_UNITS end
    units_text = string.format('%.0f', units)
  end
  local refused = has_limits and limited(i, user)
  if refused then return LIMITED, refused end

  local ticket = tickets[id] or tickets_now[i]
  if ticket then
    local kind, held = string.match(ticket, '^(%a)|(%d+)|')
    if tonumber(held) ~= units then return MISMATCH end
    if kind == 't' then return REPEAT_ENDED end
    if kind == 'o' then return OPEN_LOAN, string.match(ticket, '(%d+|%d+)$') end
    local unconfirmed = tickets[id] or redis.call('ZSCORE', unconfirmed_key, id)
    return REPEAT, unconfirmed and 'u' or 'c'
  end
  local owned, newest, lapses, lapsed_at = read_buyer(buyers[user] or buyers_now[i])
  if owned >= per_user then return AT_LIMIT, newest end
  if loans_now and (loans[user] or loans_now[i]) then return UNDER_WAY end

  if now < starts then return NOT_STARTED end
  if now >= ends or state == 'closed' then return ENDED end
  if state == 'paused' then return PAUSED end
  local flag = flags and tonumber(ARGV[flags + i]) or 0
  if flag % 2 == 1 then return WRONG_KEY end
  if flag >= 2 then return LEVEL_TOO_LOW end
  local spent = passes_now and (passes[user] or tonumber(passes_now[i] or 0))
  if spent and (now >= tonumber(ARGV[expiries + i]) or tonumber(ARGV[spent_before + i]) ~= spent) then return PASS_INVALID end
  if owned + units > per_user then return AT_LIMIT, newest end
  if lapses_max > 0 and lapses >= lapses_max and now < lapsed_at + lapse_wait then
    return LAPSED, string.format('%.0f', lapsed_at + lapse_wait - now)
  end
  if not unlimited then
    if available < units and lenders and ARGV[lenders + i] ~= '-1' then return borrow(id, user, units_text, ARGV[lenders + i]) end
    if available == 0 then return SOLD_OUT end
    if available < units then return TOO_FEW_LEFT end
    available = available - units
  end
  taken = taken + 1
  local here = 2 * taken
  tickets[id] = 'h|' .. units_text .. '|' .. user
  buyers[user] = buyer_text(owned == 0 and units_text or owned + units, id, lapses, lapsed_at)
  new_tickets[here - 1] = id; new_tickets[here] = tickets[id]
  new_buyers[here - 1] = user; new_buyers[here] = buyers[user]
  new_unconfirmed[here - 1] = now_text; new_unconfirmed[here] = id
  new_holders[taken] = user
  if spent then
    passes[user] = spent + 1
    new_passes[here - 1] = user; new_passes[here] = spent + 1
  end
  return RESERVED
end

local codes, details = {}, {}
for i = 1, n do
  local code, detail = decide(i)
  codes[i] = code
  if detail then details[#details + 1] = i - 1; details[#details + 1] = detail end
end

---------------------------------------------------------------- changes from here on

local fields = { 'clock_ms', now_text }
local function set(name, value) fields[#fields + 1] = name; fields[#fields + 1] = value end
if came_back > 0 then set('returning', 0) end
if not unlimited and available ~= stock then set('stock', available) end

if taken + #new_loans > 0 then set('changes', tonumber(sale[12] or 0) + taken + #new_loans) end
for _, loan in ipairs(new_loans) do
  redis.call('HSET', tickets_key, loan.id, loan.ticket)
  redis.call('HSET', loans_key, loan.user, loan.id)
  redis.call('ZADD', unconfirmed_key, now_text, loan.id)
end
if loan_number then set('loan', string.format('%.0f', loan_number)) end
if taken > 0 then
  redis.call('HSET', tickets_key, unpack(new_tickets))
  redis.call('HSET', buyers_key, unpack(new_buyers))
  redis.call('ZADD', unconfirmed_key, unpack(new_unconfirmed))
  redis.call('RPUSH', holders_key, unpack(new_holders))
  if passes_now then redis.call('HSET', passes_key, unpack(new_passes)) end
end

local function close_limit(l)
  if not l or not next(l.counts) then return end
  local is_new, counts = l.fresh or l.changed_width, {}
  if is_new then counts = { '#', string.format('%.0f|%.0f', l.window, l.window_ms) } end
  local last = #counts
  for field, count in pairs(l.counts) do
    counts[last + 1] = field; counts[last + 2] = count
    last = last + 2
  end
  if l.fresh then redis.call('UNLINK', l.key) end
  redis.call('HSET', l.key, unpack(counts))
  -- Once a window is enough: the next window deletes a key without time to live.
  if is_new then redis.call('PEXPIRE', l.key, l.window_ms * 2) end
end
close_limit(by_buyer)
close_limit(by_address)
close_limit(by_sale)

-- A caller may remember "sold out" only at stock 0 without returned units, when it knows all holders.
local memory, known, holders = 0, 0, {}
local sold_out_ms = tonumber(ARGV[4])
local is_sold_out = sold_out_ms > 0 and available == 0 and (returning == 0 or came_back > 0)
if is_sold_out or ARGV[6] == '1' then
  if ARGV[2] == epoch then known = tonumber(ARGV[3]) end
  -- The first entry is '#'.
  local length = redis.call('LLEN', holders_key) - 1
  if known < length then
    holders = redis.call('LRANGE', holders_key, known + 1, known + HOLDERS_CHUNK)
    known = known + #holders
  end
  local has_all = known == length and (not lenders or redis.call('HLEN', loans_key) <= BORROWERS_MAX)
  if has_all then
    local borrowers = lenders and redis.call('HKEYS', loans_key) or {}
    memory = 1
    for i = 1, #borrowers do
      if borrowers[i] ~= '#' then holders[#holders + 1] = borrowers[i] end
    end
    if is_sold_out then
      memory = 2
      local sold_out_until = tonumber(redis.call('HGET', sale_key, 'sold_out_until_ms') or 0)
      set('sold_out_until_ms', math.max(sold_out_until, math.max(now, database_now) + sold_out_ms))
    end
  end
end
redis.call('HSET', sale_key, unpack(fields))

return { tonumber(epoch), now, memory, known, holders, now + pay_within, string.char(unpack(codes)), details }
