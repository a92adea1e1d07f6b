-- Purpose: at most a permits in flight, each for at most b microseconds; see limit_begin.lua.
--
-- Key: sorted set of leases by their ends. Other members: 'n:' and a lease, with its permits if more than one; '#', with the permits of all
-- leases; '@', with the greatest time seen. Numbers of permits are below PERMITS_END, and times above it. A call reads at most DEAD_MAX
-- ended leases and WALKED_MAX others.
-- An ended lease does not count: the permits of a crashed holder become free. The id of a lease gives back all its permits, once.

local PERMITS_END, DEAD_MAX, WALKED_MAX = 1000000000, 50, 50

local function permits_of(key, lease) return tonumber(redis.call('ZSCORE', key, 'n:' .. lease) or 1) end

-- Stores the time, too: a clock that is set back must not count their room twice.
local function remove_dead(s)
  for _, lease in ipairs(s.dead) do redis.call('ZREM', s.key, lease, 'n:' .. lease) end
  redis.call('ZADD', s.key, text(s.live), '#', text(s.at), '@')
end

limiters['concurrency'] = {
  check = function(key, n, limit, lease_us, _, lease)
    local at = math.max(now_us, tonumber(redis.call('ZSCORE', key, '@') or 0))
    local live, dead = tonumber(redis.call('ZSCORE', key, '#') or 0), {}
    local ended = redis.call('ZRANGEBYSCORE', key, '(' .. PERMITS_END, text(at), 'LIMIT', 0, DEAD_MAX + 1)
    for _, id in ipairs(ended) do
      if id ~= '@' and #dead < DEAD_MAX then dead[#dead + 1] = id; live = live - permits_of(key, id) end
    end
    local newest = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
    local last = math.max(at, tonumber(newest[2] or 0))
    local s = {
      key = key, n = n, at = at, lease = lease, ends = at + lease_us, last = last, live = live, dead = dead,
      carried = #dead > 0, fits = live + n <= limit, remaining = math.max(0, limit - live), retry = 0,
      reset = last - now_us, delay = 0, mark = 0, detail = 0,
    }
    if not s.fits then
      local left, frees, rounds, n = live, now_us, rounds_of(n, limit)
      local walked = redis.call('ZRANGEBYSCORE', key, '(' .. text(at), '+inf', 'WITHSCORES', 'LIMIT', 0, WALKED_MAX)
      for i = 1, #walked, 2 do
        if left + n <= limit then break end
        left, frees = left - permits_of(key, walked[i]), tonumber(walked[i + 1])
      end
      s.retry = frees - now_us + rounds * lease_us
    end
    return s
  end,

  count = function(s)
    s.live = s.live + s.n
    remove_dead(s)
    redis.call('ZADD', s.key, text(s.ends), s.lease)
    if s.n > 1 then redis.call('ZADD', s.key, text(s.n), 'n:' .. s.lease) end
    s.remaining, s.reset = s.remaining - s.n, math.max(s.last, s.ends) - now_us
    redis.call('PEXPIRE', s.key, ttl(s.reset))
  end,

  carry = remove_dead,

  give_back = function(key, _, _, _, _, lease)
    local permits = permits_of(key, lease)
    if redis.call('ZREM', key, lease) == 0 then return 0 end
    redis.call('ZREM', key, 'n:' .. lease)
    redis.call('ZINCRBY', key, text(-permits), '#')
    return 1
  end,
}
