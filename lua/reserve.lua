-- Purpose: takes units of the stock of one sale for one or many buyers, in the order given.
--          It is the only script that sells. A server that may have lost its memory does not (protocol, rule 10).
--
-- KEYS: 1 sale (hash)          2 tickets (hash: order id -> "h|units|user" live, "t|units|user" ended)
--       3 buyers (hash: user -> read_buyer of sale_begin)
--       4 unconfirmed (zset: order id by time)   5 holders (list of users, append-only)
--       6 limit of buyers   7 limit of addresses   8 limit of the sale
--         (hashes of counts in the current window; '#' is "window|its width in ms")
--       9 passes (hash: user -> passes spent); untouched where the sale asks for none
--
-- ARGV: 1 epoch and 2 length up to which the caller knows the holders   3 sold_out_ms: how long the caller may
--       remember "sold out" (0: not at all)
--       4 buyer limit  5 buyer window ms  6 address limit  7 address window ms  8 sale limit  9 sale window ms
--         (-1 means no limit)
--       10 the database's time in ms   11 whether the caller wants to know the holders although units are left (0|1)
--       12 lapses that a buyer may have (-1: any number)   13 how long one who has as many waits after the last, in ms
--       14 whether the sale asks for a pass (0|1)
--       15 n; then for each buyer: order id, user, address, units, purchase key, level; and where the sale asks for a pass,
--       when the buyer's expires (ms; 0: there is none), and how many passes the buyer had spent when it was earned
--
-- Replies: {code}: the server cannot sell the sale (sale_begin has the codes)
--          {epoch, now_ms, memory, holders_known, {holders...}, code, detail, code, detail...}
--   memory 0 the caller does not know all holders   1 it knows all   2 and may remember "sold out"
--   code 0   RESERVED       units were taken; detail: expires_at_ms
--   code 1   REPEAT         the order exists; detail: "u|..." unconfirmed, "c|..." confirmed
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
--   code 15  PASS_INVALID   the sale asks for a pass, and there is none, or it has expired, or is spent
--
-- Taking units spends a pass: it is right only at the number of passes that its buyer has spent, and each hold is one more. So no
-- pass is spent without a hold, and none buys two.

local sale_key, tickets_key, buyers_key, unconfirmed_key, holders_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local passes_key = KEYS[9]
local RESERVED, REPEAT, REPEAT_ENDED, MISMATCH, AT_LIMIT, NOT_STARTED, ENDED = 0, 1, 2, 3, 4, 5, 6
local WRONG_KEY, LEVEL_TOO_LOW, SOLD_OUT, TOO_FEW_LEFT, LIMITED, PAUSED, BAD_UNITS, LAPSED = 7, 8, 9, 10, 11, 12, 13, 14
local PASS_INVALID = 15
local HOLDERS_CHUNK = 2000 -- bounds the reply; a caller that knows fewer holders asks again before it may remember

local sale = redis.call('HMGET', sale_key, 'epoch', 'state', 'starts_at_ms', 'ends_at_ms', 'key', 'per_user',
  'min_level', 'stock', 'returning', 'returning_at_ms', 'sold_out_until_ms', 'pay_within_ms', 'clock_ms', 'changes', 'replid', 'server')
if not sale[1] then return { UNKNOWN_SALE } end
local state = sale[2]
if state == 'filling' or not serves(sale_key, sale[15], sale[16]) then return { REFILLING } end

local database_now = tonumber(ARGV[10]) or 0
local now, earliest = sale_clock(sale[13], database_now)
local epoch, starts, ends, key = sale[1], tonumber(sale[3]), tonumber(sale[4]), sale[5]
local per_user, min_level, stock = tonumber(sale[6]), tonumber(sale[7]), tonumber(sale[8])
local returning, returning_at = tonumber(sale[9] or 0), tonumber(sale[10] or 0)
local sold_out_until, pay_within = tonumber(sale[11] or 0), tonumber(sale[12])
local unlimited = stock == -1

-- Returned units are for sale again only when no instance may remember "sold out" any more (rule 13).
local came_back = 0
if returning > 0 and earliest >= returning_at then came_back = returning end

local lapses_max, lapse_wait = tonumber(ARGV[12]), tonumber(ARGV[13])
local asks_pass, n = ARGV[14] == '1', tonumber(ARGV[15])
local per_buyer = asks_pass and 8 or 6
local ids, users, addresses = {}, {}, {}
for i = 0, n - 1 do
  local at = 16 + i * per_buyer
  ids[i + 1], users[i + 1], addresses[i + 1] = ARGV[at], ARGV[at + 1], ARGV[at + 2]
end
local tickets_now = redis.call('HMGET', tickets_key, unpack(ids))
local buyers_now = redis.call('HMGET', buyers_key, unpack(users))
local passes_now = asks_pass and redis.call('HMGET', passes_key, unpack(users))

-- Opens the window of one limit: its counts are read once for the whole batch, and written once at the end.
local function open_limit(limit_key, limit, window_ms, fields)
  local l = { key = limit_key, max = tonumber(limit), window_ms = tonumber(window_ms), counts = {}, changed = {} }
  if l.max < 0 then return l end
  local found = redis.call('HMGET', limit_key, '#', unpack(fields))
  local stored, width = string.match(found[1] or '', '^(%d+)|(%d+)$')
  stored, width = tonumber(stored), tonumber(width)
  l.window = math.floor(now / l.window_ms)
  if stored and width ~= l.window_ms then
    -- The policy has changed. The counts of a window of another width go on where it overlaps the present window.
    stored = (stored + 1) * width > l.window * l.window_ms and l.window or nil
    l.changed_width = true
  end
  l.window = math.max(l.window, stored or -1)
  l.fresh = l.window ~= stored
  if not l.fresh then
    for i = 1, #fields do l.counts[fields[i]] = tonumber(found[i + 1] or 0) end
  end
  l.retry_ms = string.format('%.0f', (l.window + 1) * l.window_ms - now)
  return l
end
local function refuses(l, field) return l.max >= 0 and (l.counts[field] or 0) >= l.max end
local function count(l, field)
  if l.max < 0 then return end
  l.counts[field] = (l.counts[field] or 0) + 1
  l.changed[field] = true
end
local by_buyer = open_limit(KEYS[6], ARGV[4], ARGV[5], users)
local by_address = open_limit(KEYS[7], ARGV[6], ARGV[7], addresses)
local by_sale = open_limit(KEYS[8], ARGV[8], ARGV[9], { 'n' })

-- Decides for one buyer after another; a later one sees what an earlier one took. Nothing is written yet.
local available = unlimited and -1 or stock + came_back
local tickets, buyers, passes, taken = {}, {}, {}, {}
local replies = {}

local function decide(i)
  local at = 16 + (i - 1) * per_buyer
  local id, user, address = ids[i], users[i], addresses[i]
  local units = tonumber(ARGV[at + 3])
  if not units or units < 1 or units ~= math.floor(units) then return BAD_UNITS, '' end

  if refuses(by_buyer, user) then return LIMITED, 'buyer|' .. by_buyer.retry_ms end
  if refuses(by_address, address) then return LIMITED, 'address|' .. by_address.retry_ms end
  if refuses(by_sale, 'n') then return LIMITED, 'sale|' .. by_sale.retry_ms end
  count(by_buyer, user); count(by_address, address); count(by_sale, 'n')

  local ticket = tickets[id] or tickets_now[i]
  if ticket then
    local kind, held = string.match(ticket, '^(%a)|(%d+)|')
    if tonumber(held) ~= units then return MISMATCH, '' end
    if kind == 't' then return REPEAT_ENDED, '' end
    local confirmed = not tickets[id] and not redis.call('ZSCORE', unconfirmed_key, id)
    return REPEAT, (confirmed and 'c|' or 'u|') .. (now + pay_within)
  end
  local owned, newest, lapses, lapsed_at = read_buyer(buyers[user] or buyers_now[i])
  if owned >= per_user then return AT_LIMIT, newest end

  if now < starts then return NOT_STARTED, '' end
  if now >= ends or state == 'closed' then return ENDED, '' end
  if state == 'paused' then return PAUSED, '' end
  if ARGV[at + 4] ~= key then return WRONG_KEY, '' end
  if tonumber(ARGV[at + 5]) < min_level then return LEVEL_TOO_LOW, '' end
  local spent = asks_pass and (passes[user] or tonumber(passes_now[i] or 0))
  if spent and (now >= tonumber(ARGV[at + 6]) or tonumber(ARGV[at + 7]) ~= spent) then return PASS_INVALID, '' end
  if owned + units > per_user then return AT_LIMIT, newest end
  if lapses_max > 0 and lapses >= lapses_max and now < lapsed_at + lapse_wait then
    return LAPSED, string.format('%.0f', lapsed_at + lapse_wait - now)
  end
  if not unlimited then
    if available == 0 then return SOLD_OUT, '' end
    if available < units then return TOO_FEW_LEFT, '' end
    available = available - units
  end
  tickets[id] = 'h|' .. units .. '|' .. user
  buyers[user] = buyer_text(owned + units, id, lapses, lapsed_at)
  if spent then passes[user] = spent + 1 end
  taken[#taken + 1] = i
  return RESERVED, now + pay_within
end

for i = 1, n do
  local code, detail = decide(i)
  replies[i * 2 - 1], replies[i * 2] = code, detail
end

---------------------------------------------------------------- changes from here on

local fields = { 'clock_ms', now }
local function set(name, value) fields[#fields + 1] = name; fields[#fields + 1] = value end
if came_back > 0 then set('returning', 0) end
if not unlimited and available ~= stock then set('stock', available) end

if #taken > 0 then
  set('changes', tonumber(sale[14] or 0) + #taken)
  local new_tickets, new_buyers, new_unconfirmed, new_holders, new_passes = {}, {}, {}, {}, {}
  for _, i in ipairs(taken) do
    local id, user = ids[i], users[i]
    new_tickets[#new_tickets + 1] = id; new_tickets[#new_tickets + 1] = tickets[id]
    new_buyers[#new_buyers + 1] = user; new_buyers[#new_buyers + 1] = buyers[user]
    new_unconfirmed[#new_unconfirmed + 1] = now; new_unconfirmed[#new_unconfirmed + 1] = id
    new_holders[#new_holders + 1] = user
    if asks_pass then new_passes[#new_passes + 1] = user; new_passes[#new_passes + 1] = passes[user] end
  end
  redis.call('HSET', tickets_key, unpack(new_tickets))
  redis.call('HSET', buyers_key, unpack(new_buyers))
  redis.call('ZADD', unconfirmed_key, unpack(new_unconfirmed))
  redis.call('RPUSH', holders_key, unpack(new_holders))
  if asks_pass then redis.call('HSET', passes_key, unpack(new_passes)) end
end

for _, l in ipairs({ by_buyer, by_address, by_sale }) do
  if next(l.changed) then
    local counts = { '#', string.format('%.0f|%.0f', l.window, l.window_ms) }
    for field in pairs(l.changed) do
      counts[#counts + 1] = field; counts[#counts + 1] = l.counts[field]
    end
    if l.fresh then redis.call('UNLINK', l.key) end
    redis.call('HSET', l.key, unpack(counts))
    -- Once a window is enough: the next window deletes a key that has lost its time to live.
    if l.fresh or l.changed_width then redis.call('PEXPIRE', l.key, l.window_ms * 2) end
  end
end

-- A caller may remember "sold out" only at stock 0, with no returned unit kept back, when it knows every holder.
local memory, known, holders = 0, 0, {}
local sold_out_ms = tonumber(ARGV[3])
local is_sold_out = sold_out_ms > 0 and available == 0 and (returning == 0 or came_back > 0)
if is_sold_out or ARGV[11] == '1' then
  if ARGV[1] == epoch then known = tonumber(ARGV[2]) end
  local length = redis.call('LLEN', holders_key)
  if known < length then
    holders = redis.call('LRANGE', holders_key, known, known + HOLDERS_CHUNK - 1)
    known = known + #holders
  end
  if known == length then
    memory = 1
    if is_sold_out then
      memory = 2
      set('sold_out_until_ms', math.max(sold_out_until, math.max(now, database_now) + sold_out_ms))
    end
  end
end
redis.call('HSET', sale_key, unpack(fields))

return { tonumber(epoch), now, memory, known, holders, unpack(replies) }
