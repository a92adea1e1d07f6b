-- Purpose: takes permits of one or several limiters, all or none: it checks all before it counts in any. A main part; see limit_begin.lua.
--
-- KEYS: the key of each limiter; then line and permits (see wait_in_line) of each limiter with a line. All keys have one hash tag, and no
--       limiter comes twice
-- ARGV: 1 now (see limit_begin); then for each limiter: algorithm, permits, a, b, c, lease, whether it has a line (1|0)
--
-- A call never passes a line: it is granted only if there is room for all waiters, too.
--
-- Replies: {code}: the request was invalid
--          {code, then for each limiter: fits (1|0), at_us, remaining, retry_ms, reset_ms, delay_ms, mark, detail}
--   code 1   GRANTED
--   code -1  REFUSED          nothing was taken
--   code -2  INVALID_REQUEST  permits are not a whole number from 1 to a, or a key comes twice; nothing was changed

local GRANTED, REFUSED, INVALID_REQUEST = 1, -1, -2
local WIDTH = 7 -- arguments of a limiter

local limits = (#ARGV - 1) / WIDTH
local seen, checks, granted = {}, {}, true
for i = 1, limits do
  local key, from = KEYS[i], 2 + (i - 1) * WIDTH
  local n, most = tonumber(string.match(ARGV[from + 1], '^%d+$')), tonumber(ARGV[from + 2])
  if not n or n < 1 or n > most or seen[key] then return { INVALID_REQUEST } end
  seen[key] = true
end
local line = limits + 1
for i = 1, limits do
  local key, from = KEYS[i], 2 + (i - 1) * WIDTH
  local limiter, lease = limiters[ARGV[from]], ARGV[from + 5]
  local n, a, b, c = tonumber(ARGV[from + 1]), tonumber(ARGV[from + 2]), tonumber(ARGV[from + 3]), tonumber(ARGV[from + 4])
  local ahead = 0
  if ARGV[from + 6] == '1' then
    local begins, ends = ends_of_line(KEYS[line], KEYS[line + 1])
    ahead, line = ends - begins, line + 2
  end
  local s = limiter.check(key, ahead + n, a, b, c, lease)
  if s.fits and ahead > 0 then s = limiter.check(key, n, a, b, c, lease) end
  s.limiter = limiter
  granted = granted and s.fits
  checks[i] = s
end

---------------------------------------------------------------- changes from here on

for _, s in ipairs(checks) do
  if granted then s.limiter.count(s) elseif s.carried then s.limiter.carry(s) end
end

local reply = { granted and GRANTED or REFUSED }
for _, s in ipairs(checks) do
  local verdict = {
    s.fits and 1 or 0, s.at, s.remaining, s.fits and 0 or ms(s.retry), ms(s.reset), granted and ms(s.delay) or 0,
    granted and s.mark or 0, granted and s.detail or 0,
  }
  for _, value in ipairs(verdict) do reply[#reply + 1] = value end
end
return reply
