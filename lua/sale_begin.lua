-- Purpose: the beginning of every script of a sale: its keys, its clock, and whether this server may serve it. crates/redis/src/scripts.rs puts it in
--          front of the others.
--
-- KEYS: 1 sale (hash: terms, state, epoch and stock)
--       2 tickets (hash: order id -> "h|units|user" live, "t|units|user" ended). In a sale with shards also at the home shard
--         "o|units|lender|number|user", an open loan, and "b|units|lender|user", a closed one; at the lender
--         "l|units|number|user", lent, and "x|number", barred. The user is last: a user's id has any characters but control characters
--       3 buyers (hash: user -> read_buyer below)
--       4 unconfirmed (sorted set: order id by time)   5 holders (list of users, append-only)
--       6 waves (set: ids of the waves in this epoch's stock)   7 passes (hash: user -> passes spent)
--       8 loans (hash: user -> order id of the open loan)
--       Keys of one script alone follow. From the beginning of a refill on, each of the eight has an empty entry (''), which is no order, user
--       or wave. So none is ever empty, and a missing key was lost.
--
-- Codes of their replies:
--   code -1  UNKNOWN_SALE   this server does not know the sale; nothing was changed
--   code -2  REFILLING      the sale is being refilled, or must be; nothing was changed

local UNKNOWN_SALE, REFILLING = -1, -2
local SALE_KEYS = 8
local sale_key, tickets_key, buyers_key, unconfirmed_key, holders_key, waves_key, passes_key, loans_key = unpack(KEYS)

-- "run_id|bytes": the run of this process, and the bytes that it has read as a replica. nil before Redis 7.0, which does not count them.
local function this_server()
  local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  local bytes = string.match(redis.call('INFO', 'stats'), 'total_net_repl_input_bytes:(%d+)')
  return bytes and run_id .. '|' .. bytes
end

local function replication_ids()
  local info = redis.call('INFO', 'replication')
  -- A plain search is faster than a pattern. The second id follows the first.
  local id, after = string.match(info, 'master_replid:(%x+)()', string.find(info, 'master_replid:', 1, true))
  return id, string.match(info, 'master_replid2:(%x+)', after)
end

-- Whether all keys of the sale are here. No script writes to a sale without one: a lost key stays lost until a refill.
local function is_whole()
  return redis.call('EXISTS', unpack(KEYS, 1, SALE_KEYS)) == SALE_KEYS
end

-- Whether this server has kept all writes since the refill of the sale began (protocol, rule 10). begin_refill wrote `replid` and `server`.
-- A restart or a promotion changes the replication id. So do two harmless events: the first replica attaches (a backup by
-- `redis-cli --rdb` is one), and the backlog expires. Only these two leave the second id empty.
local function serves(replid, server)
  if not is_whole() then return false end
  local id, second = replication_ids()
  if replid == id then return true end
  if not string.match(second or '', '^0+$') or not server or server ~= this_server() then return false end
  redis.call('HSET', sale_key, 'replid', id)
  return true
end

-- The sale's clock in ms: the server's; while they differ by more than CLOCK_OFF, the database's, which the caller gives (0: not known). It
-- never goes back behind `last`. Also returns the earliest possible time: one of the clocks may be set forward a little.
local CLOCK_OFF = 5000
local function sale_clock(last, database_now)
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local earliest = now
  if database_now > 0 then
    if math.abs(now - database_now) > CLOCK_OFF then now = database_now end
    earliest = math.min(now, database_now)
  end
  return math.max(now, tonumber(last or 0)), earliest
end

-- A buyer: "units|newest order id", and after lapsed holds also "|lapsed holds|time of the last".
local function read_buyer(text)
  if not text then return 0, '', 0, 0 end
  local units, newest, lapses, lapsed_at = string.match(text, '^(%d+)|([^|]*)|?(%d*)|?(%d*)$')
  return tonumber(units), newest, tonumber(lapses) or 0, tonumber(lapsed_at) or 0
end
local function buyer_text(units, newest, lapses, lapsed_at)
  if lapses == 0 then return units .. '|' .. newest end
  return string.format('%d|%s|%d|%.0f', units, newest, lapses, lapsed_at)
end

-- Puts returned or new units aside. read_stock puts them on sale.
local function keep_back(units)
  local sale = redis.call('HMGET', sale_key, 'returning', 'sold_out_until_ms')
  if tonumber(sale[1] or 0) == 0 then redis.call('HSET', sale_key, 'returning_at_ms', sale[2] or 0) end
  redis.call('HINCRBY', sale_key, 'returning', units)
end

-- The fields of the sale's hash that a script writes at its end: names and values. A script with such fields makes the table.
local fields
local function set(name, value) fields[#fields + 1] = name; fields[#fields + 1] = value end

-- The units for sale (-1: unlimited), the stock as it is stored, the returned units that are still aside, and when they return. Returned units
-- are for sale again when no instance may remember "sold out" any more (protocol, rule 13).
local function read_stock(stock, returning, earliest)
  stock, returning = tonumber(stock), tonumber(returning or 0)
  if returning == 0 then return stock, stock, 0 end
  local returning_at = tonumber(redis.call('HGET', sale_key, 'returning_at_ms') or 0)
  if earliest < returning_at then return stock, stock, returning, returning_at end
  set('returning', 0)
  return stock + returning, stock, 0
end

-- The caller may remember "sold out" until then.
local function set_sold_out_until(at)
  set('sold_out_until_ms', math.max(tonumber(redis.call('HGET', sale_key, 'sold_out_until_ms') or 0), at))
end
