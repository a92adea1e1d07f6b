-- Purpose: takes permits of one limiter in the order of arrival. Who comes later is granted only where the limiter has
--          room for those ahead as well. The main part; see limit_begin.lua.
--
-- KEYS: 1 the limiter's key   2 line (sorted set: waiter by arrival)   3 waiters (hash: waiter -> "heard|until|permits")
-- ARGV: 1 now (see limit_begin)   2 algorithm   3 permits   4 a   5 b   6 c   7 lease
--       8 waiter's id   9 how long to wait at most, in us, from its first call on   10 waiters that the line holds
--
-- A waiter asks again with its id until it is told something else than to wait. One that was not heard of for HEARD_US
-- is dropped: whoever crashed holds nobody up.
--
-- Replies: {-2} bad permits: nothing was looked at
--          {code, position, ask_again_ms, fits, at_us, remaining, retry_ms, reset_ms, delay_ms, mark, detail}
--   code: 1 granted   0 wait; position 1 is the next   -1 the time is over   -3 the line is full

local HEARD_US, ASK_WITHIN_US = 1000000, 400000 -- two calls may be lost before a waiter is

local key, line_key, waiters_key, waiter = KEYS[1], KEYS[2], KEYS[3], ARGV[8]
local n, most = tonumber(string.match(ARGV[3], '^%d+$')), tonumber(ARGV[4])
if not n or n < 1 or n > most then return { -2 } end

local order = redis.call('ZRANGE', line_key, 0, -1, 'WITHSCORES')
local ids, last_arrival = {}, tonumber(order[#order] or 0)
for i = 1, #order, 2 do ids[#ids + 1] = order[i] end
local states = #ids > 0 and redis.call('HMGET', waiters_key, unpack(ids)) or {}

local gone, standing, ahead, own = {}, 0, 0, nil
for i, id in ipairs(ids) do
  local heard, till, permits = string.match(states[i] or '', '^(%d+)|(%d+)|(%d+)$')
  if id == waiter and till then
    own = { position = standing + 1, till = tonumber(till) }
  elseif not heard or now_us - tonumber(heard) >= HEARD_US or now_us >= tonumber(till) then
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
local till = own and own.till or now_us + tonumber(ARGV[9])
local code
if s.fits then code = 1
elseif now_us >= till then code = -1
elseif not own and standing >= tonumber(ARGV[10]) then code = -3
else code = 0 end

---------------------------------------------------------------- changes from here on

if code == 1 then limiter.count(s) elseif s.carried then limiter.carry(s) end
if own and code ~= 0 then gone[#gone + 1] = waiter end
if #gone > 0 then
  redis.call('ZREM', line_key, unpack(gone))
  redis.call('HDEL', waiters_key, unpack(gone))
end
if code == 0 then
  if not own then redis.call('ZADD', line_key, text(math.max(now_us, last_arrival + 1)), waiter) end
  redis.call('HSET', waiters_key, waiter, table.concat({ text(now_us), text(till), text(n) }, '|'))
  redis.call('PEXPIRE', line_key, ttl(HEARD_US))
  redis.call('PEXPIRE', waiters_key, ttl(HEARD_US))
end

local again = math.max(1, ms(math.min(s.retry, ASK_WITHIN_US, till - now_us)))
return {
  code, code == 0 and (own and own.position or standing + 1) or 0, code == 0 and again or 0,
  s.fits and 1 or 0, s.at, s.remaining, s.fits and 0 or ms(s.retry), ms(s.reset), s.fits and ms(s.delay) or 0,
  s.fits and s.mark or 0, s.fits and s.detail or 0,
}
