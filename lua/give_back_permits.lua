-- Purpose: gives back what acquire_permits or wait_in_line took. The main part; see limit_begin.lua.
--
-- KEYS: the key of each dimension's limiter
-- ARGV: 1 now (see limit_begin); then for each dimension: algorithm, permits, a, b, c, lease, mark, detail
--
-- Replies: {1|0 a dimension}: whether there was something to give back to

local WIDTH = 8

---------------------------------------------------------------- changes from here on

local reply = {}
for i, key in ipairs(KEYS) do
  local from = 2 + (i - 1) * WIDTH
  local function number(at) return tonumber(ARGV[from + at]) end
  reply[i] = limiters[ARGV[from]].give_back(key, number(1), number(2), number(3), number(4), ARGV[from + 5], number(6),
    number(7))
end
return reply
