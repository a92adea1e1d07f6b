-- Purpose: at most a permits in any window of b microseconds, exactly; see limit_begin.lua.
--
-- Key: sorted set of grants by time; member "place:permits:upto": the place of the first permit among those of the same microsecond, the
-- permits, and the sum of all permits up to this grant. The permits of a window are a difference of two sums, and a call costs O(log n).
-- The window is half open, (now - b, now]: a place is free again exactly one window later.
-- Receipt: mark is the time, detail the place. A grant among the NEWEST_MAX newest can be given back.

local DEAD_MAX, NEWEST_MAX = 50, 50 -- the most grants that a call removes, and searches

local function grant_of(member, score)
  if not member then return nil end
  local place, permits, upto = string.match(member, '^(%d+):(%d+):(%d+)$')
  return { member = member, time = tonumber(score), place = tonumber(place), permits = tonumber(permits), upto = tonumber(upto) }
end

local function member_of(place, permits, upto)
  return string.format('%08.0f', place) .. ':' .. text(permits) .. ':' .. text(upto)
end

local function grant_at(key, rank)
  local found = redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')
  return grant_of(found[1], found[2])
end

limiters['sliding-log'] = {
  check = function(key, n, limit, window)
    local newest = grant_at(key, -1)
    local last = newest and newest.time or 0
    local at = math.max(now_us, last)
    local live, dead, before = 0, 0, 0
    if newest then
      dead = redis.call('ZCOUNT', key, '-inf', text(at - window))
      local oldest = grant_at(key, dead)
      if oldest then before = oldest.upto - oldest.permits; live = newest.upto - before end
    end
    local s = {
      key = key, n = n, at = at, window = window, dead = dead, upto = newest and newest.upto or 0, fits = live + n <= limit,
      remaining = math.max(0, limit - live), retry = 0, reset = last + window - now_us, delay = 0, mark = at,
      detail = last == at and newest.place + newest.permits or 0,
    }
    if not s.fits then
      -- There is room when the `excess` oldest permits have left the window.
      local rounds, n = rounds_of(n, limit)
      local excess, leaves = live + n - limit, last
      if excess <= 0 then
        leaves = now_us - window
      elseif newest then
        local low, high = dead, redis.call('ZCARD', key) - 1
        while low < high do
          local middle = math.floor((low + high) / 2)
          if grant_at(key, middle).upto >= before + excess then high = middle else low = middle + 1 end
        end
        leaves = grant_at(key, low).time
      end
      s.retry = leaves + window - now_us + rounds * window
    end
    return s
  end,

  count = function(s)
    if s.dead > 0 then redis.call('ZREMRANGEBYRANK', s.key, 0, math.min(s.dead, DEAD_MAX) - 1) end
    redis.call('ZADD', s.key, text(s.at), member_of(s.detail, s.n, s.upto + s.n))
    s.remaining, s.reset = s.remaining - s.n, s.at + s.window - now_us
    redis.call('PEXPIRE', s.key, ttl(s.reset))
  end,

  give_back = function(key, _, _, window, _, _, mark, detail)
    local newer, found, newest = {}, nil, redis.call('ZREVRANGE', key, 0, NEWEST_MAX - 1, 'WITHSCORES')
    for i = 1, #newest, 2 do
      local grant = grant_of(newest[i], newest[i + 1])
      if grant.time == mark and grant.place == detail then found = grant; break end
      newer[#newer + 1] = grant
    end
    if not found then return 0 end
    redis.call('ZREM', key, found.member)
    -- The oldest first: a new member may equal the old member before it.
    for i = #newer, 1, -1 do
      local grant = newer[i]
      redis.call('ZREM', key, grant.member)
      redis.call('ZADD', key, text(grant.time), member_of(grant.place, grant.permits, grant.upto - found.permits))
    end
    local last = grant_at(key, -1)
    if last then redis.call('PEXPIRE', key, ttl(last.time + window - now_us)) end
    return 1
  end,
}
