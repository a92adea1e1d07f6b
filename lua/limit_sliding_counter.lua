-- Purpose: at most a permits in any window of b microseconds, in little memory. Composed as limit_begin.lua says.
--
-- Key: hash of counts by sub-window (number since the epoch, 125 to a window), 'at' and 'width': 128 fields at most,
-- which is what a hash's compact form holds.
-- The form usually met keeps two counts and takes the older one at the share by which its window still overlaps. That
-- supposes its permits spread evenly; where they came late, nearly twice the limit gets through in some window. It was
-- rejected. Here the oldest sub-window, which overlaps only in part, counts in full: never above the limit in any
-- window, and at least 125/126 of what is allowed.
-- Counts under another width are put where the latest of their permits can have been: never forgotten too early.
-- Receipt: mark is the sub-window, detail its width.

local PARTS = 125 -- a window is one of whole milliseconds, so that its 125th part is a whole number of microseconds

limiters['sliding-counter'] = {
  check = function(key, n, limit, window)
    local width = window / PARTS
    local flat, found, last, found_width = redis.call('HGETALL', key), {}, 0, width
    for i = 1, #flat, 2 do
      if flat[i] == 'at' then last = tonumber(flat[i + 1])
      elseif flat[i] == 'width' then found_width = tonumber(flat[i + 1])
      else found[tonumber(flat[i])] = tonumber(flat[i + 1]) end
    end
    local other_width = found_width ~= width
    if other_width then
      local moved = {}
      for part, count in pairs(found) do
        local at = math.floor(math.min((part + 1) * found_width - 1, last) / width)
        moved[at] = (moved[at] or 0) + count
      end
      found = moved
    end

    local at = math.max(now_us, last)
    local oldest, current = math.floor((at - window + 1) / width), math.floor(at / width)
    local live, counts, expired, newest = 0, {}, {}, oldest
    for part, count in pairs(found) do
      if part < oldest then
        expired[#expired + 1] = text(part)
      else
        live, counts[part], newest = live + count, count, math.max(newest, part)
      end
    end
    -- A sub-window is left behind when its last microsecond is a window old.
    local function free(part) return (part + 1) * width + window - 1 - now_us end
    local s = {
      key = key, n = n, at = at, width = width, counts = counts, expired = expired, other_width = other_width,
      fits = live + n <= limit, remaining = math.max(0, limit - live), retry = 0, reset = free(newest), delay = 0,
      mark = current, detail = width, full_reset = free(current),
    }
    if not s.fits then
      local left, leaves = live, newest
      for part = oldest, current do
        left = left - (counts[part] or 0)
        if left + n <= limit then leaves = part; break end
      end
      s.retry = free(leaves)
    end
    return s
  end,

  count = function(s)
    local count = (s.counts[s.mark] or 0) + s.n
    local fields = { 'at', text(s.at), 'width', text(s.width), text(s.mark), text(count) }
    if s.other_width then
      for part, of_part in pairs(s.counts) do
        if part ~= s.mark then fields[#fields + 1] = text(part); fields[#fields + 1] = text(of_part) end
      end
      redis.call('UNLINK', s.key)
    elseif #s.expired > 0 then
      redis.call('HDEL', s.key, unpack(s.expired))
    end
    redis.call('HSET', s.key, unpack(fields))
    s.remaining, s.reset = s.remaining - s.n, s.full_reset
    redis.call('PEXPIRE', s.key, ttl(s.reset))
  end,

  give_back = function(key, n, _, _, _, _, mark, detail)
    if tonumber(redis.call('HGET', key, 'width') or 0) ~= detail then return 0 end
    local count = tonumber(redis.call('HGET', key, text(mark)) or 0)
    if count == 0 then return 0 end
    if count > n then redis.call('HSET', key, text(mark), text(count - n)) else redis.call('HDEL', key, text(mark)) end
    redis.call('PEXPIRE', key, ttl((mark + 1 + PARTS) * detail - now_us))
    return 1
  end,
}
