-- Purpose: at most a permits in flight, each for at most b microseconds. limit_begin.lua says how it is composed.
--
-- Key: sorted set of permits by the end of their lease; member "lease:i". Member '@' has the greatest time seen.
-- A lease that has ended no longer counts, so that the permits of a crashed holder become free by themselves.
-- The id of a lease gives back all its permits; a second call does nothing.

local CHUNK = 1000 -- Lua's stack holds about 8000 arguments

local function score(found) return tonumber(found[2]) end

limiters['concurrency'] = {
  check = function(key, n, limit, lease_us, _, lease)
    local at = math.max(now_us, tonumber(redis.call('ZSCORE', key, '@') or 0))
    local live = redis.call('ZCOUNT', key, '(' .. text(at), '+inf')
    local last = at
    if live > 0 then last = score(redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')) end
    local s = {
      key = key, n = n, at = at, lease = lease, ends = at + lease_us, last = last, fits = live + n <= limit,
      remaining = math.max(0, limit - live), retry = 0, reset = last - now_us, delay = 0, mark = 0, detail = 0,
    }
    if not s.fits then
      local excess = live + n - limit
      local dead = redis.call('ZCARD', key) - live
      local frees = redis.call('ZRANGE', key, dead + excess - 1, dead + excess - 1, 'WITHSCORES')
      s.retry = (score(frees) or last) - now_us
    end
    return s
  end,

  count = function(s)
    redis.call('ZREMRANGEBYSCORE', s.key, '-inf', text(s.at))
    for from = 1, s.n, CHUNK do
      local members = { text(s.at), '@' }
      for i = from, math.min(from + CHUNK - 1, s.n) do
        members[#members + 1] = text(s.ends); members[#members + 1] = s.lease .. ':' .. i
      end
      redis.call('ZADD', s.key, unpack(members))
    end
    s.remaining, s.reset = s.remaining - s.n, math.max(s.last, s.ends) - now_us
    redis.call('PEXPIRE', s.key, ttl(s.reset))
  end,

  give_back = function(key, _, _, lease_us, _, lease)
    -- A lease has members from 1 on without a gap. Most have one.
    local from, removed, chunk = 1, 0, 1
    repeat
      local members = {}
      for i = from, from + chunk - 1 do members[#members + 1] = lease .. ':' .. i end
      local now_removed = redis.call('ZREM', key, unpack(members))
      local may_have_more = now_removed == chunk
      from, removed, chunk = from + chunk, removed + now_removed, math.min(chunk * 10, CHUNK)
    until not may_have_more
    return removed > 0 and 1 or 0
  end,
}
