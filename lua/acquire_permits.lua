-- Purpose: takes permits in one or several dimensions, all or nothing: all are checked, then all are counted, so that
--          a call that the third refuses has used up nothing of the first two. The main part; see limit_begin.lua.
--
-- KEYS: the key of each dimension's limiter; no two the same, all of one hash tag
-- ARGV: 1 now (see limit_begin); then for each dimension: algorithm, permits, a, b, c, lease
--
-- Replies: {-2} permits that are no whole number from 1 to a, or a key twice: nothing was looked at
--          {code (1 granted, -1 refused: nothing was taken), then for each dimension: fits (1|0), at_us, remaining,
--           retry_ms, reset_ms, delay_ms, mark, detail}

local WIDTH = 6

local seen, dimensions, granted = {}, {}, true
for i, key in ipairs(KEYS) do
  local from = 2 + (i - 1) * WIDTH
  local n, most = tonumber(string.match(ARGV[from + 1], '^%d+$')), tonumber(ARGV[from + 2])
  if not n or n < 1 or n > most or seen[key] then return { -2 } end
  seen[key] = true
end
for i, key in ipairs(KEYS) do
  local from = 2 + (i - 1) * WIDTH
  local limiter = limiters[ARGV[from]]
  local s = limiter.check(key, tonumber(ARGV[from + 1]), tonumber(ARGV[from + 2]), tonumber(ARGV[from + 3]),
    tonumber(ARGV[from + 4]), ARGV[from + 5])
  s.limiter = limiter
  granted = granted and s.fits
  dimensions[i] = s
end

---------------------------------------------------------------- changes from here on

for _, s in ipairs(dimensions) do
  if granted then s.limiter.count(s) elseif s.carried then s.limiter.carry(s) end
end

local reply = { granted and 1 or -1 }
for _, s in ipairs(dimensions) do
  local of_dimension = {
    s.fits and 1 or 0, s.at, s.remaining, s.fits and 0 or ms(s.retry), ms(s.reset), granted and ms(s.delay) or 0,
    granted and s.mark or 0, granted and s.detail or 0,
  }
  for _, value in ipairs(of_dimension) do reply[#reply + 1] = value end
end
return reply
