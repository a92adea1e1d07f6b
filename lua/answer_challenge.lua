-- Purpose: spends a challenge with any answer, right or wrong, and returns how many passes the buyer has spent in the sale. A pass names this
--          number (protocol, rule 18).
--
-- KEYS: as sale_begin, and 9 mark of the challenge (string; it expires by itself)
-- ARGV: 1 user   2 when the challenge expires, in ms   3 the database's time in ms
--
-- Replies: {code}: the sale is not served here (see sale_begin); the challenge is not spent
--          {code, now_ms, passes spent}
--   code 0   SPENT          by this call
--   code 1   SPENT_BEFORE   by an earlier call
--   code 2   EXPIRED

local SPENT, SPENT_BEFORE, EXPIRED = 0, 1, 2
-- The mark outlives the challenge: a clock that is set back a little must not accept an answer twice. LIVES_MAX bounds any expiry.
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
