-- Purpose: the clock and the arithmetic of all limiter scripts. crates/redis/src/scripts.rs joins limit_begin, one or all of limit_ALGORITHM, and a
--          main part (acquire_permits, give_back_permits or wait_in_line).
--
-- ARGV: 1 "d" and the database's time in milliseconds; or "" when it is unknown; or now in microseconds, by tests only
--
-- A limiter is a table of functions. `a`, `b` and `c` are its parameters; `a` is the most permits of one call.
--   check(key, n, a, b, c, lease)  only reads. Returns `s`:
--       fits; at (the time of the check); remaining; retry, reset and delay in us from now; the receipt: mark, detail
--       (n may be above `a` for a waiter in line. Then retry is when the last permit fits, if each is taken as soon as it fits)
--   count(s)                       writes a grant that fits, sets the key's end, and updates `s`
--   carry(s)                       when s.carried, and the call is refused: writes the state of now
--   give_back(key, n, a, b, c, lease, mark, detail)  takes a grant back. Returns 1, or 0 when nothing of it was left
--
-- All numbers stay below 2^53, where a double is exact (crates/domain/src/limiter has the bounds). text() writes them, because `..` keeps only
-- 14 digits.

local limiters = {}

-- The server's clock; the database's while they differ by more than CLOCK_OFF.
local CLOCK_OFF = 5000000
local now_us = tonumber(ARGV[1])
if not now_us then
  local time, database_now = redis.call('TIME'), string.match(ARGV[1], '^d(%d+)$')
  now_us = time[1] * 1000000 + time[2]
  database_now = tonumber(database_now or 0) * 1000
  if database_now > 0 and math.abs(now_us - database_now) > CLOCK_OFF then now_us = database_now end
end

-- How often a limiter of `a` permits is used up before the last of n permits fits, and how many of them remain then.
local function rounds_of(n, a)
  local rounds = math.floor((n - 1) / a)
  return rounds, n - rounds * a
end

local function text(number) return string.format('%.0f', number) end
local function ms(us) return math.ceil(us / 1000) end

-- The begin and the end of a line, in permits: a newcomer has the permits between them ahead (see wait_in_line.lua).
local function ends_of_line(line, permits)
  local first, last = redis.call('ZRANGE', line, 0, 0, 'WITHSCORES'), redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')
  if not first[1] then return 0, 0 end
  return tonumber(first[2]) - tonumber(redis.call('HGET', permits, first[1])), tonumber(last[2])
end

-- A key ends 5 s after its state: NTP may set the clock of Redis forward a little.
local function ttl(us) return text(math.max(0, ms(us)) + 5000) end
