-- Purpose: pauses, resumes or closes a sale that is open at the given epoch.
--
-- KEYS: 1 sale
-- ARGV: 1 epoch   2 state (open|paused|closed)
--
-- Replies: 1 done | 0 refused: this server has another epoch, or the sale is being refilled

if ARGV[2] ~= 'open' and ARGV[2] ~= 'paused' and ARGV[2] ~= 'closed' then
  return redis.error_reply('set_sale_state: open, paused or closed')
end
local sale = redis.call('HMGET', KEYS[1], 'epoch', 'state')
if sale[1] ~= ARGV[1] or sale[2] == 'filling' then return 0 end

---------------------------------------------------------------- changes from here on

redis.call('HSET', KEYS[1], 'state', ARGV[2])
return 1
