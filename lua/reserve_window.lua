-- Purpose: whether a buyer may buy: the sale's window and pause; the buyer's purchase key, level, pass, and lapsed holds.
--
-- A pass must have the number of passes that its buyer has spent, and each hold raises the number. So no pass is spent without a hold, and
-- none buys two.

local NOT_STARTED, ENDED, PAUSED = 5, 6, 12
local WRONG_KEY, LEVEL_TOO_LOW, LAPSED, PASS_INVALID = 7, 8, 14, 15

local lapses_max, lapse_wait, spent_before = tonumber(ARGV[7]), tonumber(ARGV[8]), expiries and expiries + n

-- The code for everyone while the sale is not on. nil: it is on.
local shut
if now < starts then
  shut = NOT_STARTED
elseif now >= ends or state == 'closed' then
  shut = ENDED
elseif state == 'paused' then
  shut = PAUSED
end

-- The code that refuses the purchase key, level or pass of buyer i, who has spent so many passes (nil: the sale asks for none).
local function check_request(i, spent)
  local flag = flags and tonumber(ARGV[flags + i]) or 0
  if flag % 2 == 1 then return WRONG_KEY end
  if flag >= 2 then return LEVEL_TOO_LOW end
  if spent and (now >= tonumber(ARGV[expiries + i]) or tonumber(ARGV[spent_before + i]) ~= spent) then return PASS_INVALID end
end

local function check_lapses(lapses, lapsed_at)
  if lapses_max > 0 and lapses >= lapses_max and now < lapsed_at + lapse_wait then
    return LAPSED, string.format('%.0f', lapsed_at + lapse_wait - now)
  end
end
