-- Purpose: gives back permits of acquire_permits or wait_in_line. A main part; see limit_begin.lua.
--
-- KEYS: the key of each limiter
-- ARGV: 1 now (see limit_begin); then for each limiter: algorithm, permits, a, b, c, lease, mark, detail
--
-- Replies: for each limiter, 1: permits came back | 0: the grant had ended

local WIDTH = 8 -- arguments of a limiter

---------------------------------------------------------------- changes from here on

local reply = {}
for i, key in ipairs(KEYS) do
  local from = 2 + (i - 1) * WIDTH
  local function number(at) return tonumber(ARGV[from + at]) end
  reply[i] = limiters[ARGV[from]].give_back(key, number(1), number(2), number(3), number(4), ARGV[from + 5], number(6),
    number(7))
end
return reply
