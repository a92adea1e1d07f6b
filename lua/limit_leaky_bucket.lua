-- Purpose: a bucket as a meter: permits are water, which drains by b permits in c microseconds. A permit is granted if it fits under a; see
--          limit_begin.lua. limit_bucket.lua has the key.
--
-- The delay is the time until the caller's turn at the constant outflow. No key: the bucket is empty.
-- After a change of parameters, the water stays, in permits, drained at the old rate until now. The first call writes it (carry).
-- Receipt: mark is the time, detail the water before the grant.

local function water_at(found, at)
  local elapsed = at - found.at
  if elapsed >= math.ceil(found.level / found.rate) then return 0 end
  return found.level - elapsed * found.rate
end

limiters['leaky-bucket'] = {
  check = function(key, n, capacity, rate, period)
    local found = bucket.read(key)
    local full, at = capacity * period, math.max(now_us, found and found.at or 0)
    local level, carried = 0, false
    if found then
      level = bucket.in_period(water_at(found, at), found.period, period, true)
      carried = found.rate ~= rate or found.period ~= period
    end
    local empty_in = at + math.ceil(level / rate) - now_us
    return {
      key = key, n = n, at = at, level = level, capacity = capacity, rate = rate, period = period, carried = carried,
      fits = level + n * period <= full, remaining = math.max(0, math.floor((full - level) / period)),
      retry = at + math.ceil((level + n * period - full) / rate) - now_us,
      reset = empty_in, delay = empty_in, mark = at, detail = level,
    }
  end,

  count = function(s)
    s.level = s.level + s.n * s.period
    s.remaining = s.remaining - s.n
    s.reset = s.at + math.ceil(s.level / s.rate) - now_us
    bucket.write(s.key, s.at, s.level, s.capacity, s.rate, s.period, s.reset)
  end,

  carry = function(s) bucket.write(s.key, s.at, s.level, s.capacity, s.rate, s.period, s.reset) end,

  give_back = function(key, n, capacity, rate, period, _, mark, detail)
    local found = bucket.read(key)
    if not found or found.rate ~= rate or found.period ~= period then return 0 end
    local at = math.max(now_us, found.at)
    local amount = bucket.returnable(n, rate, period, at, mark, detail)
    if not amount then return 0 end
    local level = math.max(0, water_at(found, at) - amount)
    bucket.write(key, at, level, capacity, rate, period, at + math.ceil(level / rate) - now_us)
    return 1
  end,
}
