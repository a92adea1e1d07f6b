-- Purpose: reads orders, lists of orders and a session in turn, each time for another buyer.
--
-- Arguments: 1 file of records (buyers.lua)   2 length of a record in bytes

local file, length
local turn = 0

function init(args)
  file, length = assert(io.open(args[1], 'rb')), tonumber(args[2])
  file:setvbuf('full', 65536)
end

local function random_order()
  return string.format('%08x-0000-7000-8000-%012x', math.random(0, 2 ^ 31 - 1), math.random(0, 2 ^ 31 - 1))
end

function request()
  local buyer = file:read(length)
  if not buyer then
    file:seek('set')
    buyer = file:read(length)
  end
  turn = (turn + 1) % 3
  local path, cookie = '/api/v1/orders/' .. random_order(), ''
  if turn == 1 then path = '/api/v1/orders' end
  if turn == 2 then path, cookie = '/api/v1/admin/session', 'Cookie: seckill_session=nobody\r\n' end
  return 'GET ' .. path .. ' HTTP/1.1\r\nHost: ' .. wrk.host .. ':' .. wrk.port .. '\r\n' .. cookie .. buyer
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"micros":%d,"refused":%d,"failed":%d,"p50_us":%d,"p99_us":%d}\n', summary.requests,
    summary.duration, errors.status, errors.connect + errors.read + errors.write,
    latency:percentile(50), latency:percentile(99)))
end
