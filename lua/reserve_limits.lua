-- Purpose: the limits of requests: by buyer, by address, and of the sale. Each counts in a window. Its counts are read and written once a call.

local LIMITED = 11

-- Opens the window of a limit. `terms` is the place before its number and window (nil: there is no such limit), `names` before the n counted
-- names (nil: one count, of all).
local function open_limit(key, terms, names)
  if not terms then return nil end
  local l = { key = key, max = tonumber(ARGV[terms + 1]), window_ms = tonumber(ARGV[terms + 2]), counts = {}, found = false }
  if names then
    l.found = redis.call('HMGET', key, '', unpack(ARGV, names + 1, names + n))
  else
    l.found = redis.call('HMGET', key, '', 'n')
  end
  local stored, width = string.match(l.found[1] or '', '^(%d+)|(%d+)$')
  stored, width = tonumber(stored), tonumber(width)
  l.window = math.floor(now / l.window_ms)
  if stored and width ~= l.window_ms then
    -- The policy has changed. Counts of a window of another width stay if it overlaps the current window.
    stored = (stored + 1) * width > l.window * l.window_ms and l.window or nil
    l.changed_width = true
  end
  l.window = math.max(l.window, stored or -1)
  l.fresh = l.window ~= stored
  if l.fresh then l.found = {} end
  return l
end
local addresses = parts.a and parts.a + 2
local by_buyer = open_limit(KEYS[9], parts.b, users)
local by_address = open_limit(KEYS[10], parts.a, addresses)
local by_sale = open_limit(KEYS[11], parts.s)
local has_limits = by_buyer or by_address or by_sale

-- The count of a name, including this call; `i` is its place among the names.
local function counted(l, name, i) return l.counts[name] or tonumber(l.found[i + 1]) or 0 end
local function refuse(limit, l) return LIMITED, limit .. '|' .. string.format('%.0f', (l.window + 1) * l.window_ms - now) end

-- The code and detail of the limit that refuses buyer i. Without a refusal, all limits count the request.
local function check_limits(i, user)
  local of_buyer = by_buyer and counted(by_buyer, user, i)
  if by_buyer and of_buyer >= by_buyer.max then return refuse('buyer', by_buyer) end
  local address = by_address and ARGV[addresses + i]
  local of_address = by_address and counted(by_address, address, i)
  if by_address and of_address >= by_address.max then return refuse('address', by_address) end
  local of_sale = by_sale and counted(by_sale, 'n', 1)
  if by_sale and of_sale >= by_sale.max then return refuse('sale', by_sale) end
  if by_buyer then by_buyer.counts[user] = of_buyer + 1 end
  if by_address then by_address.counts[address] = of_address + 1 end
  if by_sale then by_sale.counts.n = of_sale + 1 end
end

local function close_limit(l)
  if not l or not next(l.counts) then return end
  local is_new, counts = l.fresh or l.changed_width, {}
  if is_new then counts = { '', string.format('%.0f|%.0f', l.window, l.window_ms) } end
  local last = #counts
  for name, count in pairs(l.counts) do
    counts[last + 1] = name; counts[last + 2] = count
    last = last + 2
  end
  if l.fresh then redis.call('UNLINK', l.key) end
  redis.call('HSET', l.key, unpack(counts))
  -- Once a window is enough: the next window deletes a key without time to live.
  if is_new then redis.call('PEXPIRE', l.key, l.window_ms * 2) end
end
