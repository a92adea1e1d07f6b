-- Purpose: ends holds of one sale. Each leaves a tombstone, so its id is never sold again. Its units return for sale where asked to. A second
--          call does nothing. In a sale with shards it is called at the shard with the units, and then at the home shard of a borrower.
--          There it ends the loan, after the effects of close_loan if the loan is open.
--
-- KEYS: as sale_begin
-- ARGV: 1 n; then for each order: order id, whether its units return (1|0), when it lapsed unpaid (ms; 0: it ended otherwise); in a sale with
--       shards then: whether it asks for passes (1|0)
--
-- Replies: {code}: ask again later (see sale_begin)
--          {epoch, number of ended holds and loans}; in a sale with shards then the buyer of each order ('': unknown)

local sale = redis.call('HMGET', sale_key, 'epoch', 'state', 'stock', 'replid', 'server')
if not sale[1] then return { UNKNOWN_SALE } end
if sale[2] == 'filling' or not serves(sale[4], sale[5]) then return { REFILLING } end
local n = tonumber(ARGV[1])

-- The numbers between units and user in a ticket of each kind.
local OF_LOAN = { h = '', t = '', b = '%d+|', l = '%d+|', o = '%d+|%d+|' }
local function read_ticket(ticket)
  local kind = string.sub(ticket, 1, 1)
  local units, user = string.match(ticket, '^%a|(%d+)|' .. (OF_LOAN[kind] or '') .. '(.*)$')
  if units then return kind, units, user end
end

---------------------------------------------------------------- changes from here on

local asks_pass = ARGV[2 + n * 3] -- nil: the sale has one shard
local released, back, users = 0, 0, {}

-- Takes `counted` ended units off the buyer at the home shard.
local function end_for_buyer(user, counted, lapsed_now)
  local buyer = redis.call('HGET', buyers_key, user)
  if buyer then
    local owned, newest, lapses, lapsed_at = read_buyer(buyer)
    if lapsed_now > 0 then lapses, lapsed_at = lapses + 1, math.max(lapsed_at, lapsed_now) end
    redis.call('HSET', buyers_key, user, buyer_text(math.max(0, owned - counted), newest, lapses, lapsed_at))
  end
end

for i = 0, n - 1 do
  local id, returns, lapsed_now = ARGV[2 + i * 3], ARGV[3 + i * 3], tonumber(ARGV[4 + i * 3])
  local ticket = redis.call('HGET', tickets_key, id)
  local kind, units, user = read_ticket(ticket or '')
  if kind and kind ~= 't' then
    redis.call('HSET', tickets_key, id, 't|' .. units .. '|' .. user)
    redis.call('ZREM', unconfirmed_key, id)
    if kind == 'o' then
      redis.call('HDEL', loans_key, user)
      redis.call('RPUSH', holders_key, user)
      if asks_pass == '1' then redis.call('HINCRBY', passes_key, user, 1) end
      redis.call('HSETNX', buyers_key, user, buyer_text(0, id, 0, 0))
    end
    if kind ~= 'l' then end_for_buyer(user, kind == 'o' and 0 or units, lapsed_now) end
    released = released + 1
    if returns == '1' and (kind == 'h' or kind == 'l') then back = back + tonumber(units) end
  end
  users[i + 1] = user or ''
end

if released > 0 then redis.call('HINCRBY', sale_key, 'changes', released) end
if back > 0 and sale[3] ~= '-1' then keep_back(back) end
return { tonumber(sale[1]), released, unpack(asks_pass and users or {}) }
