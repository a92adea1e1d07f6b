-- Purpose: pauses, resumes or closes a sale that is open at the given epoch.
--
-- KEYS: as sale_begin
-- ARGV: 1 epoch   2 state (open|paused|closed)   3 version of the catalogue at which the ledger has this state
--
-- Replies: 1 done | 0 refused: the sale is not served here at this epoch, or has a state of a newer version

if ARGV[2] ~= 'open' and ARGV[2] ~= 'paused' and ARGV[2] ~= 'closed' then
  return redis.error_reply('set_sale_state: open, paused or closed')
end
local version = tonumber(ARGV[3])
if not version then return redis.error_reply('set_sale_state: version is not a number') end
local sale = redis.call('HMGET', sale_key, 'epoch', 'state', 'state_version', 'replid', 'server')
if sale[1] ~= ARGV[1] or sale[2] == 'filling' or not serves(sale[4], sale[5]) then return 0 end
-- An older reading of the ledger does not undo a change.
if version < tonumber(sale[3] or 0) then return 0 end

---------------------------------------------------------------- changes from here on

redis.call('HSET', sale_key, 'state', ARGV[2], 'state_version', version)
return 1
