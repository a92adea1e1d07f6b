-- Purpose: the beginning of every script of a sale: its keys, whether this server may serve the sale, and the sale's clock. It
--          is not a script by itself: src/gate/scripts.rs puts it in front of the others.
--
-- KEYS: 1 sale (hash: terms, state, epoch and stock)
--       2 tickets (hash: order id -> "h|units|user" live, "t|units|user" ended). In a sale with shards a ticket may also be
--         "o|units|user|lender|number", an open loan, or "b|units|user|lender", a closed one; and at the lender
--         "l|units|user|number", lent, or "x|number", barred
--       3 buyers (hash: user -> read_buyer below)
--       4 unconfirmed (sorted set: order id by time)   5 holders (list of users, append-only)
--       6 waves (set: ids of the waves that this epoch's stock contains)
--       7 passes (hash: user -> passes spent), where the sale asks for them
--       8 loans (hash: user -> order id of the open loan), where the sale has shards
--       Keys of one script alone follow. Each of the eight has an entry '#' from the beginning of a refill on, which is no order, no user
--       and no wave: so none is ever empty, and one that does not exist was lost.
--
-- Codes of their replies:
--   code -1  UNKNOWN_SALE   this server does not know the sale; nothing was changed
--   code -2  REFILLING      the sale is being refilled, or must be; nothing was changed

local UNKNOWN_SALE, REFILLING = -1, -2
local SALE_KEYS = 8
local sale_key, tickets_key, buyers_key, unconfirmed_key, holders_key, waves_key, passes_key, loans_key = unpack(KEYS)

-- The run of this process, and how much it has read as another server's replica: "run_id|bytes". A server that has taken
-- over another one's memory has read it. nil before Redis 7.0, which does not count the bytes.
local function this_server()
  local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  local bytes = string.match(redis.call('INFO', 'stats'), 'total_net_repl_input_bytes:(%d+)')
  return bytes and run_id .. '|' .. bytes
end

local function replication_ids()
  local info = redis.call('INFO', 'replication')
  return string.match(info, 'master_replid:(%x+)'), string.match(info, 'master_replid2:(%x+)')
end

-- Whether the sale's keys are all here. No script writes to a sale that lacks one, so that what is lost stays so until a refill.
local function is_whole()
  return redis.call('EXISTS', unpack(KEYS, 1, SALE_KEYS)) == SALE_KEYS
end

-- Whether this server has all that was written since the refill of the sale began here (protocol, rule 10). `replid` and
-- `server` are what begin_refill wrote. A restart or a promotion gives a server a new replication id. Two events without any loss do so,
-- too: the first replica attaches (a backup by `redis-cli --rdb` is one), and the backlog expires. They, and only they,
-- leave the second id empty.
local function serves(replid, server)
  if not is_whole() then return false end
  local id, second = replication_ids()
  if replid == id then return true end
  if not string.match(second or '', '^0+$') or not server or server ~= this_server() then return false end
  redis.call('HSET', sale_key, 'replid', id)
  return true
end

-- The sale's clock in ms: the server's, and while that is more than CLOCK_OFF away from the database's, which the caller gives
-- (0: not known), the database's. It never goes back behind `last`. With it, the earliest that it can be: one of the two
-- clocks may have been set forward a little.
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

-- What the server keeps of a buyer: "units|newest order id", and of one who let holds lapse also "|lapsed holds|time of the last".
local function read_buyer(text)
  if not text then return 0, '', 0, 0 end
  local units, newest, lapses, lapsed_at = string.match(text, '^(%d+)|([^|]*)|?(%d*)|?(%d*)$')
  return tonumber(units), newest, tonumber(lapses) or 0, tonumber(lapsed_at) or 0
end
local function buyer_text(units, newest, lapses, lapsed_at)
  if lapses == 0 then return units .. '|' .. newest end
  return string.format('%d|%s|%d|%.0f', units, newest, lapses, lapsed_at)
end

-- Puts units aside that have come back, or are new. reserve puts them on sale, when no instance can remember "sold out" any more
-- (protocol, rule 13): at once if none does.
local function keep_back(units)
  local sale = redis.call('HMGET', sale_key, 'returning', 'sold_out_until_ms')
  if tonumber(sale[1] or 0) == 0 then redis.call('HSET', sale_key, 'returning_at_ms', sale[2] or 0) end
  redis.call('HINCRBY', sale_key, 'returning', units)
end

