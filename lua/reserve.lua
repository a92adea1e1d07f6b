-- Purpose: takes units of one sale for one or many buyers, in the order given. It is the only script that sells (protocol, rule 10).
--          crates/redis/src/scripts.rs puts its parts in front of it: sale_begin, reserve_begin and the other reserve_PART.
--
-- KEYS: as sale_begin, and 9 limit of buyers   10 limit of addresses   11 limit of the sale
--         (hashes of counts in the current window; '' is "window|its width in ms"); unused without such a limit
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
--         f   n flags: 1 wrong purchase key, 2 level too low, 3 both, 0 neither; by default 0. The caller compares them with the sale's
--             terms of the version v
--         p   the sale asks for a pass: n times in ms when the buyers' passes expire (0: no pass), then n numbers of passes that each buyer had
--             spent when the pass was earned
--         v   the version of the terms that the callers know; by default 0. If the sale has another one, it is not served
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

local AT_LIMIT, BAD_UNITS, UNDER_WAY = 4, 13, 17

-- Decides for one buyer after another: later ones see the units that earlier ones took. Nothing is written yet.
local function decide(i)
  local id, user, units, units_text = ARGV[ids + i], ARGV[users + i], 1, '1'
  if units_asked then
    units = tonumber(ARGV[units_asked + i])
    if not units or units < 1 or units ~= math.floor(units) then return BAD_UNITS end
    units_text = string.format('%.0f', units)
  end
  local code, detail
  if has_limits then code, detail = check_limits(i, user) end
  if code then return code, detail end

  local ticket = tickets[id] or tickets_now[i]
  if ticket then return answer_repeat(ticket, id, units) end
  local owned, newest, lapses, lapsed_at = read_buyer(buyers[user] or buyers_now[i])
  if owned >= per_user then return AT_LIMIT, newest end
  if loans_now and (loans[user] or loans_now[i]) then return UNDER_WAY end

  if shut then return shut end
  local spent = passes_now and (passes[user] or tonumber(passes_now[i] or 0))
  if flags or spent then code = check_request(i, spent) end
  if code then return code end
  if owned + units > per_user then return AT_LIMIT, newest end
  if lapses > 0 then code, detail = check_lapses(lapses, lapsed_at) end
  if code then return code, detail end

  if available ~= -1 and available < units then return borrow(i, id, user, units_text) end
  return take(id, user, units, units_text, spent, owned, lapses, lapsed_at)
end

local codes, details = {}, {}
for i = 1, n do
  local code, detail = decide(i)
  codes[i] = code
  if detail then details[#details + 1] = i - 1; details[#details + 1] = detail end
end

---------------------------------------------------------------- changes from here on

if available ~= stock then set('stock', available) end
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
close_limit(by_buyer)
close_limit(by_address)
close_limit(by_sale)
local memory, known, holders = remember()
redis.call('HSET', sale_key, unpack(fields))

return { tonumber(epoch), now, memory, known, holders, now + pay_within, string.char(unpack(codes)), details }
