-- Purpose: the beginning of every limiter script: the clock and the arithmetic that limiters share. It is not a script
--          by itself: src/gate/scripts.rs composes limit_begin, one or all of limit_ALGORITHM, and a main part
--          (acquire_permits, give_back_permits or wait_in_line).
--
-- ARGV: 1 "d" and the database's time in milliseconds; or nothing, when that is not known; or now in microseconds, given by
--       tests only
--
-- A limiter is a table of functions. `a`, `b` and `c` are its parameters; `a` is the most permits of one call.
--   check(key, n, a, b, c, lease)  reads, and writes nothing. Returns `s`:
--       fits; at (the time of the check); remaining; retry, reset and delay in us from now; the receipt: mark, detail
--       (n may be above `a` for a waiter in line: retry is then when the last of them fits, if those before are taken as soon as
--       they fit)
--   count(s)                       writes a grant that check found to fit, sets the key's end, and updates `s`
--   carry(s)                       when s.carried, and the call is refused: writes what has become of the state meanwhile
--   give_back(key, n, a, b, c, lease, mark, detail)  takes a grant back. Returns 1, or 0 when nothing of it was left
--
-- Every number stays below 2^53, where a double is exact (src/domain/limiter has the bounds). text() writes numbers,
-- because `..` keeps 14 digits only.

local limiters = {}

-- The server's clock, and while that is more than CLOCK_OFF away from the database's, the database's.
local CLOCK_OFF = 5000000
local now_us = tonumber(ARGV[1])
if not now_us then
  local time, database_now = redis.call('TIME'), string.match(ARGV[1], '^d(%d+)$')
  now_us = time[1] * 1000000 + time[2]
  database_now = tonumber(database_now or 0) * 1000
  if database_now > 0 and math.abs(now_us - database_now) > CLOCK_OFF then now_us = database_now end
end

-- How often a limiter of `a` permits must be used up before the last of n fits, and how many of them are left then.
local function rounds_of(n, a)
  local rounds = math.floor((n - 1) / a)
  return rounds, n - rounds * a
end

local function text(number) return string.format('%.0f', number) end
local function ms(us) return math.ceil(us / 1000) end

-- Where a line begins and where it ends, in permits that waiters have asked for: what lies between is ahead of a newcomer.
-- wait_in_line.lua describes the line.
local function ends_of_line(line, permits)
  local first, last = redis.call('ZRANGE', line, 0, 0, 'WITHSCORES'), redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')
  if not first[1] then return 0, 0 end
  return tonumber(first[2]) - tonumber(redis.call('HGET', permits, first[1])), tonumber(last[2])
end

-- A key ends 5 s after its state has lost its meaning: Redis expires it by a clock that NTP may set forward a little.
local function ttl(us) return text(math.max(0, ms(us)) + 5000) end
