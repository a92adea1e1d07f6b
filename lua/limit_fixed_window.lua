-- Purpose: at most a permits in each aligned window of b microseconds; see limit_begin.lua.
--
-- Key: string "at|width|count": the permits of one window of this width, which contains `at`, the last grant.
-- After a change of width, the count stays in full if its last grant lies in this window.
-- Receipt: mark is the start of the window, detail its width.

local function read_window(key)
  local at, width, count = string.match(redis.call('GET', key) or '', '^(%d+)|(%d+)|(%d+)$')
  return tonumber(at or 0), tonumber(width or 0), tonumber(count or 0)
end

limiters['fixed-window'] = {
  check = function(key, n, limit, width)
    local last, _, count = read_window(key)
    local at = math.max(now_us, last)
    local start = at - at % width
    if last < start then count = 0 end
    local ends, free = start + width - now_us, math.max(0, limit - count)
    return {
      key = key, n = n, at = at, width = width, count = count, fits = count + n <= limit,
      remaining = free, reset = ends, delay = 0, mark = start, detail = width,
      retry = ends + math.floor(math.max(0, n - free - 1) / limit) * width,
    }
  end,

  count = function(s)
    local value = text(s.at) .. '|' .. text(s.width) .. '|' .. text(s.count + s.n)
    redis.call('SET', s.key, value, 'PX', ttl(s.reset))
    s.remaining = s.remaining - s.n
  end,

  give_back = function(key, n, limit, width, _, _, mark, detail)
    local at, counted, count = read_window(key)
    if counted ~= detail or at - at % detail ~= mark then return 0 end
    local value = text(at) .. '|' .. text(counted) .. '|' .. text(math.max(0, count - n))
    redis.call('SET', key, value, 'PX', ttl(mark + detail - now_us))
    return 1
  end,
}
