-- Purpose: at most a permits in any window of b microseconds, in little memory; see limit_begin.lua.
--
-- Key: hash of permits by sub-window (its number since the epoch; 125 to a window). Field '#' is "at|width|oldest|total": the last grant, the
-- width of the sub-windows, the oldest sub-window that counted then, and the sum. At most 127 fields: a hash is compact up to 128.
-- The usual form weights the older of two counts by its overlap with the window. If its permits came late, nearly twice the limit passes.
-- Here the oldest sub-window, which overlaps only in part, counts in full. So no window exceeds the limit, and at least 125/126 of it is
-- granted.
-- After a change of width, counts move to the latest possible time of their permits: none ends too early.
-- Receipt: mark is the sub-window, detail its width.

local PARTS = 125 -- a window is whole milliseconds: its 125th part is whole microseconds
local CHUNK = 16  -- sub-windows read at once; a refusal seldom needs more than the oldest

local function read_counter(key)
  local at, width, oldest, total = string.match(redis.call('HGET', key, '#') or '', '^(%d+)|(%d+)|(%d+)|(%d+)$')
  if at then return { at = tonumber(at), width = tonumber(width), oldest = tonumber(oldest), total = tonumber(total) } end
end

local function describe_counter(at, width, oldest, total)
  return table.concat({ text(at), text(width), text(oldest), text(total) }, '|')
end

local function parts(from, to)
  local names = {}
  for part = from, to do names[#names + 1] = text(part) end
  return names
end

-- All counts, converted to sub-windows of another width.
local function counts_by(key, found, width)
  local flat, moved = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do
    if flat[i] ~= '#' then
      local latest = math.min((tonumber(flat[i]) + 1) * found.width - 1, found.at)
      local part = math.floor(latest / width)
      moved[part] = (moved[part] or 0) + tonumber(flat[i + 1])
    end
  end
  return moved
end

limiters['sliding-counter'] = {
  check = function(key, n, limit, window)
    local width, found = window / PARTS, read_counter(key)
    local at = math.max(now_us, found and found.at or 0)
    local oldest, current = math.floor((at - window + 1) / width), math.floor(at / width)
    local newest = math.max(oldest, found and math.floor(found.at / width) or 0)
    local live, expired, moved, afresh = 0, {}, nil, false
    if not found or math.floor(found.at / width) < oldest then
      afresh = true -- nothing counts any more
    elseif found.width ~= width then
      moved, afresh = counts_by(key, found, width), true
      for part, count in pairs(moved) do
        if part < oldest then moved[part] = nil else live = live + count end
      end
    else
      live = found.total
      if oldest > found.oldest then
        local names = parts(found.oldest, oldest - 1)
        for i, count in ipairs(redis.call('HMGET', key, unpack(names))) do
          if count then live = live - tonumber(count); expired[#expired + 1] = names[i] end
        end
      end
    end

    -- A sub-window stops counting when its last microsecond is one window old.
    local function free(part) return (part + 1) * width + window - 1 - now_us end
    local s = {
      key = key, n = n, at = at, width = width, oldest = oldest, live = live, expired = expired, moved = moved,
      afresh = afresh, fits = live + n <= limit, remaining = math.max(0, limit - live), retry = 0,
      reset = free(newest), delay = 0, mark = current, detail = width, reset_when_counted = free(current),
    }
    if not s.fits then
      local left, part, rounds, n = live, oldest - 1, rounds_of(n, limit)
      while left + n > limit and part < newest do
        local counts
        if not moved then
          counts = redis.call('HMGET', key, unpack(parts(part + 1, math.min(part + CHUNK, newest))))
        end
        for i = 1, CHUNK do
          part = part + 1
          left = left - tonumber((moved and moved[part] or counts and counts[i]) or 0)
          if left + n <= limit or part >= newest then break end
        end
      end
      s.retry = math.max(0, free(part)) + rounds * window
    end
    return s
  end,

  count = function(s)
    if s.afresh then
      redis.call('UNLINK', s.key)
      for part, count in pairs(s.moved or {}) do redis.call('HSET', s.key, text(part), text(count)) end
    elseif #s.expired > 0 then
      redis.call('HDEL', s.key, unpack(s.expired))
    end
    redis.call('HINCRBY', s.key, text(s.mark), s.n)
    redis.call('HSET', s.key, '#', describe_counter(s.at, s.width, s.oldest, s.live + s.n))
    s.remaining, s.reset = s.remaining - s.n, s.reset_when_counted
    redis.call('PEXPIRE', s.key, ttl(s.reset))
  end,

  give_back = function(key, n, _, _, _, _, mark, detail)
    local found = read_counter(key)
    if not found or found.width ~= detail then return 0 end
    local count = tonumber(redis.call('HGET', key, text(mark)) or 0)
    if count == 0 then return 0 end
    local back = math.min(n, count)
    if back < count then redis.call('HINCRBY', key, text(mark), -back) else redis.call('HDEL', key, text(mark)) end
    redis.call('HSET', key, '#', describe_counter(found.at, found.width, found.oldest, found.total - back))
    redis.call('PEXPIRE', key, ttl((math.floor(found.at / detail) + 1 + PARTS) * detail - now_us))
    return 1
  end,
}
