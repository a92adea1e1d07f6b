-- Purpose: takes permits of one limiter in the order of arrival. A later waiter is granted only when the limiter has
--          room for the waiters ahead as well. The main part; see limit_begin.lua.
--
-- KEYS: 1 the limiter's key   2 line (sorted set: waiter by arrival)
--       3 waiters (hash: waiter -> "asked|deadline|permits")
-- ARGV: 1 now (see limit_begin)   2 algorithm   3 permits   4 a   5 b   6 c   7 lease
--       8 waiter's id   9 the longest wait in us, from its first call on   10 the most waiters of the line
--
-- A waiter calls again with its id until the code is not WAIT. A waiter that has not called for SILENT_US loses its
-- place, so that a crashed waiter does not block the line.
--
-- Replies: {code}: the request was invalid
--          {code, position, ask_again_ms, fits, at_us, remaining, retry_ms, reset_ms, delay_ms, mark, detail}
--   code 1   GRANTED
--   code 0   WAIT             position 1 is next
--   code -1  TOO_LATE         the longest wait is over
--   code -2  INVALID_REQUEST  permits are not a whole number from 1 to a; nothing was changed
--   code -3  LINE_FULL

local GRANTED, WAIT, TOO_LATE, INVALID_REQUEST, LINE_FULL = 1, 0, -1, -2, -3
local SILENT_US, ASK_WITHIN_US = 1000000, 400000 -- a waiter keeps its place when two of its calls are lost

local key, line_key, waiters_key, waiter = KEYS[1], KEYS[2], KEYS[3], ARGV[8]
local n, most = tonumber(string.match(ARGV[3], '^%d+$')), tonumber(ARGV[4])
if not n or n < 1 or n > most then return { INVALID_REQUEST } end

local order = redis.call('ZRANGE', line_key, 0, -1, 'WITHSCORES')
local ids, last_arrival = {}, tonumber(order[#order] or 0)
for i = 1, #order, 2 do ids[#ids + 1] = order[i] end
local states = #ids > 0 and redis.call('HMGET', waiters_key, unpack(ids)) or {}

local gone, standing, ahead, own = {}, 0, 0, nil
for i, id in ipairs(ids) do
  local asked, deadline, permits = string.match(states[i] or '', '^(%d+)|(%d+)|(%d+)$')
  if id == waiter and deadline then
    own = { position = standing + 1, deadline = tonumber(deadline) }
  elseif not asked or now_us - tonumber(asked) >= SILENT_US or now_us >= tonumber(deadline) then
    gone[#gone + 1] = id
  else
    standing = standing + 1
    if not own then ahead = ahead + tonumber(permits) end
  end
end

local limiter = limiters[ARGV[2]]
local b, c = tonumber(ARGV[5]), tonumber(ARGV[6])
local s = limiter.check(key, ahead + n, most, b, c, ARGV[7])
if s.fits and ahead > 0 then s = limiter.check(key, n, most, b, c, ARGV[7]) end
local deadline = own and own.deadline or now_us + tonumber(ARGV[9])
local code
if s.fits then code = GRANTED
elseif now_us >= deadline then code = TOO_LATE
elseif not own and standing >= tonumber(ARGV[10]) then code = LINE_FULL
else code = WAIT end

---------------------------------------------------------------- changes from here on

if code == GRANTED then limiter.count(s) elseif s.carried then limiter.carry(s) end
if own and code ~= WAIT then gone[#gone + 1] = waiter end
if #gone > 0 then
  redis.call('ZREM', line_key, unpack(gone))
  redis.call('HDEL', waiters_key, unpack(gone))
end
if code == WAIT then
  if not own then redis.call('ZADD', line_key, text(math.max(now_us, last_arrival + 1)), waiter) end
  redis.call('HSET', waiters_key, waiter, table.concat({ text(now_us), text(deadline), text(n) }, '|'))
  redis.call('PEXPIRE', line_key, ttl(SILENT_US))
  redis.call('PEXPIRE', waiters_key, ttl(SILENT_US))
end

local again = math.max(1, ms(math.min(s.retry, ASK_WITHIN_US, deadline - now_us)))
return {
  code, code == WAIT and (own and own.position or standing + 1) or 0, code == WAIT and again or 0,
  s.fits and 1 or 0, s.at, s.remaining, s.fits and 0 or ms(s.retry), ms(s.reset), s.fits and ms(s.delay) or 0,
  s.fits and s.mark or 0, s.fits and s.detail or 0,
}
