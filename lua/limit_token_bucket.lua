-- Purpose: a bucket of a tokens, refilled by b tokens in c microseconds, when a call comes; see limit_begin.lua. limit_bucket.lua has the key.
--
-- No key: the bucket is full. After a change of parameters, the tokens stay: they grew at the old rate until now, and the new capacity bounds
-- them. A larger bucket does not start full. The first call writes this level even when it is refused (carry). No other refusal writes.
-- Receipt: mark is the time, detail the tokens that a full bucket had more before the grant.

local function tokens_at(found, at)
  local full = found.capacity * found.period
  local elapsed = at - found.at
  -- After a long pause, the product would exceed 2^53.
  if elapsed >= math.ceil((full - found.level) / found.rate) then return full end
  return found.level + elapsed * found.rate
end

limiters['token-bucket'] = {
  check = function(key, n, capacity, rate, period)
    local found = bucket.read(key)
    local full, at = capacity * period, math.max(now_us, found and found.at or 0)
    local level, carried = full, false
    if found then
      level = tokens_at(found, at)
      carried = found.capacity ~= capacity or found.rate ~= rate or found.period ~= period
      if carried then level = math.min(full, bucket.in_period(level, found.period, period)) end
    end
    return {
      key = key, n = n, at = at, level = level, capacity = capacity, rate = rate, period = period, carried = carried,
      fits = n * period <= level, remaining = math.floor(level / period), delay = 0,
      retry = at + math.ceil((n * period - level) / rate) - now_us,
      reset = at + math.ceil((full - level) / rate) - now_us, mark = at, detail = full - level,
    }
  end,

  count = function(s)
    s.level = s.level - s.n * s.period
    s.remaining = s.remaining - s.n
    s.reset = s.at + math.ceil((s.capacity * s.period - s.level) / s.rate) - now_us
    bucket.write(s.key, s.at, s.level, s.capacity, s.rate, s.period, s.reset)
  end,

  carry = function(s) bucket.write(s.key, s.at, s.level, s.capacity, s.rate, s.period, s.reset) end,

  give_back = function(key, n, capacity, rate, period, _, mark, detail)
    local found = bucket.read(key)
    if not found or found.capacity ~= capacity or found.rate ~= rate or found.period ~= period then return 0 end
    local at = math.max(now_us, found.at)
    local amount = bucket.returnable(n, rate, period, at, mark, detail)
    if not amount then return 0 end
    local full = capacity * period
    local level = math.min(full, tokens_at(found, at) + amount)
    bucket.write(key, at, level, capacity, rate, period, at + math.ceil((full - level) / rate) - now_us)
    return 1
  end,
}
