-- Purpose: spends a challenge that a buyer has answered in a sale, whether the answer is right or wrong, and says how many passes the
--          buyer has spent in the sale: a pass names that number (protocol, rule 18). It takes nothing of the stock.
--
-- KEYS: those of sale_begin, and 9 mark of the challenge (string; it expires by itself)
-- ARGV: 1 user   2 when the challenge expires, in ms   3 the database's time in ms
--
-- Replies: {code}: this server cannot tell (sale_begin has the codes); the challenge is not spent
--          {code, now_ms, passes spent}
--   code 0   SPENT          this call has spent the challenge
--   code 1   SPENT_BEFORE   an earlier one has
--   code 2   EXPIRED

local SPENT, SPENT_BEFORE, EXPIRED = 0, 1, 2
-- The mark outlives the challenge by this long, so that a clock that is set back a little makes no answer good twice; and it never
-- lives for longer than this, whatever expiry is asked for.
local OUTLIVES, LIVES_MAX = 60000, 86400000

local expires_at = tonumber(ARGV[2])
if not expires_at then return redis.error_reply('answer_challenge: the expiry is not a number') end
local sale = redis.call('HMGET', sale_key, 'epoch', 'state', 'replid', 'server', 'clock_ms')
if not sale[1] then return { UNKNOWN_SALE } end
if sale[2] == 'filling' or not serves(sale[3], sale[4]) then return { REFILLING } end
local now = sale_clock(sale[5], tonumber(ARGV[3]) or 0)
if now >= expires_at then return { EXPIRED, now, 0 } end

---------------------------------------------------------------- changes from here on

local lives = string.format('%.0f', math.min(expires_at - now + OUTLIVES, LIVES_MAX))
if not redis.call('SET', KEYS[9], '1', 'NX', 'PX', lives) then return { SPENT_BEFORE, now, 0 } end
return { SPENT, now, tonumber(redis.call('HGET', passes_key, ARGV[1]) or 0) }
