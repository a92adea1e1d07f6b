-- Purpose: what the caller may remember after this call: holders, and "sold out" only at stock 0 without returned units, when it knows all
--          holders (protocol, rule 13).

-- Returns `memory`, how many holders the caller knows then, and the holders to add.
local function remember()
  -- They bound the reply. A caller without all holders asks again before it may remember "sold out".
  local HOLDERS_CHUNK, BORROWERS_MAX = 10000, 2000
  local sold_out_ms, known, holders = tonumber(ARGV[4]), 0, {}
  local is_sold_out = sold_out_ms > 0 and available == 0 and aside == 0
  if not is_sold_out and ARGV[6] ~= '1' then return 0, known, holders end
  if ARGV[2] == epoch then known = tonumber(ARGV[3]) end
  -- The first entry is the empty one.
  local length = redis.call('LLEN', holders_key) - 1
  if known < length then
    holders = redis.call('LRANGE', holders_key, known + 1, known + HOLDERS_CHUNK)
    known = known + #holders
  end
  if known ~= length or lenders and redis.call('HLEN', loans_key) > BORROWERS_MAX then return 0, known, holders end
  for _, borrower in ipairs(lenders and redis.call('HKEYS', loans_key) or {}) do
    if borrower ~= '' then holders[#holders + 1] = borrower end
  end
  if not is_sold_out then return 1, known, holders end
  set_sold_out_until(math.max(now, database_now) + sold_out_ms)
  return 2, known, holders
end
