-- Purpose: sends one request for each buyer of a file. A record of the file is the part of the request's head that differs
--          from buyer to buyer. With a path it posts purchases. Without one it reads an order, the list of orders and a
--          session in turn.
--
-- Arguments: 1 file of records   2 length of a record in bytes   3 path (optional)   4 body, with a path

local file, length, head, body
local turn = 0

function init(args)
  file, length, body = assert(io.open(args[1], 'rb')), tonumber(args[2]), args[4]
  file:setvbuf('full', 65536)
  if args[3] then
    head = 'POST ' .. args[3] .. ' HTTP/1.1\r\nHost: ' .. wrk.host .. ':' .. wrk.port ..
      '\r\nContent-Type: application/json\r\nContent-Length: ' .. #body .. '\r\n'
  end
end

local function next_buyer()
  local buyer = file:read(length)
  if not buyer then
    file:seek('set')
    buyer = file:read(length)
  end
  return buyer
end

local function read_request(buyer)
  turn = (turn + 1) % 3
  local path, cookie = '/api/v1/orders', ''
  if turn == 0 then
    path = string.format('%s/%08x-0000-7000-8000-%012x', path, math.random(0, 2 ^ 31 - 1), math.random(0, 2 ^ 31 - 1))
  elseif turn == 2 then
    path, cookie = '/api/v1/admin/session', 'Cookie: seckill_session=nobody\r\n'
  end
  return 'GET ' .. path .. ' HTTP/1.1\r\nHost: ' .. wrk.host .. ':' .. wrk.port .. '\r\n' .. cookie .. buyer
end

function request()
  local buyer = next_buyer()
  if head then return head .. buyer .. body end
  return read_request(buyer)
end

-- Answers are not parsed here, because that would cost more than the request. The service counts them by code.
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"micros":%d,"refused":%d,"failed":%d,"timeouts":%d,"p50_us":%d,"p99_us":%d}\n', summary.requests,
    summary.duration, errors.status, errors.connect + errors.read + errors.write, errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
