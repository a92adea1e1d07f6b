-- Purpose: the beginning of every limiter script: the clock and the arithmetic that limiters share. No script by
--          itself: src/gate/scripts.rs composes limit_begin, one or all of limit_ALGORITHM, and a main part
--          (acquire_permits, give_back_permits or wait_in_line).
--
-- ARGV: 1 now in microseconds; empty but in tests: then it is the server's clock
--
-- A limiter is a table of functions. `a`, `b` and `c` are its parameters, and `a` the most permits of one call.
--   check(key, n, a, b, c, lease)  looks, and writes nothing. Returns what it saw, as `s`:
--       fits; at (the time judged at); remaining; retry, reset and delay in us from now; mark and detail (the receipt)
--       (n may be above `a` for who stands in line: then retry is an estimate)
--   count(s)                       writes what check has found to fit, TTL included, and brings `s` up to date
--   carry(s)                       buckets alone, where s.carried: writes the state down under changed parameters
--   give_back(key, n, a, b, c, lease, mark, detail)  returns what a grant took; 1, or 0 where nothing was left of it
--
-- Every number stays below 2^53, where a double is exact (the bounds are in src/domain/limiter), and is written by
-- text(), because `..` keeps 14 digits only.

local limiters = {}

local now_us = tonumber(ARGV[1])
if not now_us then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
end

local function text(number) return string.format('%.0f', number) end
local function ms(us) return math.ceil(us / 1000) end

-- Keys outlive their meaning by 5 s: Redis expires them by a clock that may be set forward, a little, by NTP.
local function ttl(us) return text(math.max(0, ms(us)) + 5000) end
