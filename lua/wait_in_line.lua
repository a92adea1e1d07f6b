-- Purpose: takes permits of one limiter in the order of arrival. A later waiter is granted only if there is room for the waiters ahead, too.
--          A main part; see limit_begin.lua.
--
-- KEYS: 1 the limiter's key   2 line (sorted set: waiter by the sum of permits up to and with it, since the line began)
--       3 permits (hash: waiter -> permits)   4 asked (sorted set: waiter by when it counts as silent)
-- ARGV: 1 now (see limit_begin)   2 algorithm   3 permits   4 a   5 b   6 c   7 lease
--       8 waiter's id   9 how long the waiter will still wait, in us   10 the most waiters of the line
--       11 for leases: the pause of the first place, in us   12 the longest pause, in us
--
-- A waiter calls again with its id until the code is not WAIT: when its turn may come, and at the latest after the longest pause. Leases can be
-- given back at any time: for them, the waiter at position p pauses p × ARGV[11]. A waiter that is silent for SILENT longest pauses loses its
-- place: a crashed waiter does not block the line.
--
-- Every step costs O(log n) in a line of n. A waiter that leaves from the middle counts for those behind it until the waiters ahead of it have
-- gone. So a waiter is never served too early, and at most one call too late.
--
-- Replies: {code}: the request was invalid
--          {code, position, ask_again_ms, fits, at_us, remaining, retry_ms, reset_ms, delay_ms, mark, detail}
--   code 1   GRANTED
--   code 0   WAIT             position 1 is next
--   code -1  TOO_LATE         the longest wait is over
--   code -2  INVALID_REQUEST  permits are not a whole number from 1 to a; nothing was changed
--   code -3  LINE_FULL

local GRANTED, WAIT, TOO_LATE, INVALID_REQUEST, LINE_FULL = 1, 0, -1, -2, -3
local SILENT, KEPT_US = 2.5, 10000000 -- a waiter may lose two calls
local SILENT_MAX, PERMITS_MAX = 100, 4503599627370496 -- the most waiters that a call removes; half of the exact numbers

local key, line, permits, asked, waiter = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[8]
local n, most = tonumber(string.match(ARGV[3], '^%d+$')), tonumber(ARGV[4])
if not n or n < 1 or n > most then return { INVALID_REQUEST } end

---------------------------------------------------------------- changes from here on

local function remove(waiters)
  if #waiters == 0 then return end
  redis.call('ZREM', line, unpack(waiters))
  redis.call('HDEL', permits, unpack(waiters))
  redis.call('ZREM', asked, unpack(waiters))
end

local silent = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', asked, '-inf', text(now_us), 'LIMIT', 0, SILENT_MAX)) do
  if id ~= waiter then silent[#silent + 1] = id end
end
remove(silent)

local begins, up_to = ends_of_line(line, permits)
local own, standing = redis.call('ZSCORE', line, waiter), redis.call('ZCARD', line)
local ahead = up_to - begins
if own then ahead = tonumber(own) - tonumber(redis.call('HGET', permits, waiter)) - begins end

local limiter = limiters[ARGV[2]]
local b, c, patience = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[9])
local shortest, longest = tonumber(ARGV[11]), tonumber(ARGV[12])
local s = limiter.check(key, ahead + n, most, b, c, ARGV[7])
if s.fits and ahead > 0 then s = limiter.check(key, n, most, b, c, ARGV[7]) end
local code
if s.fits then code = GRANTED
elseif patience <= 0 then code = TOO_LATE
elseif not own and (standing >= tonumber(ARGV[10]) or up_to > PERMITS_MAX) then code = LINE_FULL
else code = WAIT end

if code == GRANTED then limiter.count(s) elseif s.carried then limiter.carry(s) end
local position = 0
if code == WAIT then
  if not own then
    redis.call('ZADD', line, text(up_to + n), waiter)
    redis.call('HSET', permits, waiter, text(n))
  end
  redis.call('ZADD', asked, text(now_us + SILENT * longest), waiter)
  position = own and redis.call('ZRANK', line, waiter) + 1 or standing + 1
  for _, kept in ipairs({ line, permits, asked }) do redis.call('PEXPIRE', kept, ttl(KEPT_US)) end
elseif own then
  remove({ waiter })
end

local pause = longest
if ARGV[2] == 'concurrency' then pause = math.min(shortest * position, longest) end
local again = math.max(1, ms(math.min(s.retry, pause, patience)))
return {
  code, position, code == WAIT and again or 0,
  s.fits and 1 or 0, s.at, s.remaining, s.fits and 0 or ms(s.retry), ms(s.reset), s.fits and ms(s.delay) or 0,
  s.fits and s.mark or 0, s.fits and s.detail or 0,
}
