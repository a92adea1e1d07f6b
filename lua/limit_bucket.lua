-- Purpose: the shared functions of token buckets and leaky buckets; see limit_begin.lua.
--
-- Key: string "at|level|capacity|rate|period": the level at a time, and its parameters.
-- A level is counted in permits × period in microseconds: one microsecond is worth exactly `rate`.

local bucket = {}

function bucket.read(key)
  local at, level, capacity, rate, period =
    string.match(redis.call('GET', key) or '', '^(%d+)|(%d+)|(%d+)|(%d+)|(%d+)$')
  if not at then return nil end
  local found = { at = tonumber(at), level = tonumber(level), capacity = tonumber(capacity) }
  found.rate, found.period = tonumber(rate), tonumber(period)
  return found
end

function bucket.write(key, at, level, capacity, rate, period, rests_in)
  local value = table.concat({ text(at), text(level), text(capacity), text(rate), text(period) }, '|')
  redis.call('SET', key, value, 'PX', ttl(rests_in))
end

-- x * by / of, rounded down or up, for x < of; in two steps, because the product may exceed 2^53.
local function scale(x, by, of, up)
  local high = x * math.floor(by / 65536)
  local low = high % of * 65536 + x * (by % 65536)
  local rest = low % of
  return math.floor(high / of) * 65536 + math.floor(low / of) + ((up and rest > 0) and 1 or 0)
end

-- Converts a level to another period.
function bucket.in_period(level, of, by, up)
  if by == of then return level end
  return math.floor(level / of) * by + scale(level % of, by, of, up)
end

-- How much of n permits can be given back at `at`. `mark` is the time of the grant. After the flow `detail`, a bucket without the grant
-- would have reached its bound, and the later flow is lost. nil: everything is lost.
function bucket.returnable(n, rate, period, at, mark, detail)
  local taken, since = n * period, at - mark
  if since >= math.ceil((detail + taken) / rate) then return nil end
  return taken - math.max(0, since * rate - detail)
end
