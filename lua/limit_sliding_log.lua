-- Purpose: at most a permits in any window of b microseconds, exactly. limit_begin.lua says how it is composed.
--
-- Key: sorted set of permits by time; member "time:place", with the place among the permits of one microsecond. The
-- window is half open, (now - b, now]: a place is free again exactly one window later.
-- Receipt: mark is the time, detail the first of n places.

local CHUNK = 1000 -- Lua's stack holds about 8000 arguments

local function place_of(time, place) return text(time) .. ':' .. string.format('%08.0f', place) end

limiters['sliding-log'] = {
  check = function(key, n, limit, window)
    local newest = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
    local last = tonumber(newest[2] or 0)
    local at = math.max(now_us, last)
    local live = 0
    if newest[1] then live = redis.call('ZCOUNT', key, '(' .. text(at - window), '+inf') end
    local s = {
      key = key, n = n, at = at, window = window, fits = live + n <= limit,
      remaining = math.max(0, limit - live), retry = 0, reset = last + window - now_us, delay = 0, mark = at,
      detail = last == at and tonumber(string.match(newest[1], ':(%d+)$')) + 1 or 0,
    }
    if not s.fits then
      -- There is room when the `excess` oldest permits have left the window.
      local excess = live + n - limit
      local dead = redis.call('ZCARD', key) - live
      local leaves = redis.call('ZRANGE', key, dead + excess - 1, dead + excess - 1, 'WITHSCORES')
      s.retry = tonumber(leaves[2] or last) + window - now_us
    end
    return s
  end,

  count = function(s)
    redis.call('ZREMRANGEBYSCORE', s.key, '-inf', text(s.at - s.window))
    for from = 0, s.n - 1, CHUNK do
      local members = {}
      for place = from, math.min(from + CHUNK, s.n) - 1 do
        members[#members + 1] = text(s.at); members[#members + 1] = place_of(s.at, s.detail + place)
      end
      redis.call('ZADD', s.key, unpack(members))
    end
    s.remaining, s.reset = s.remaining - s.n, s.at + s.window - now_us
    redis.call('PEXPIRE', s.key, ttl(s.reset))
  end,

  give_back = function(key, n, _, window, _, _, mark, detail)
    local removed = 0
    for from = 0, n - 1, CHUNK do
      local members = {}
      for place = from, math.min(from + CHUNK, n) - 1 do members[#members + 1] = place_of(mark, detail + place) end
      removed = removed + redis.call('ZREM', key, unpack(members))
    end
    local newest = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
    if newest[2] then redis.call('PEXPIRE', key, ttl(tonumber(newest[2]) + window - now_us)) end
    return removed > 0 and 1 or 0
  end,
}
