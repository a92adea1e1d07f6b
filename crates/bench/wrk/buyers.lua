-- Purpose: sends one request for each buyer in a file. A record of the file is the part of the request's head that differs
--          from buyer to buyer. All cases send the same kind of request, so that the generator costs the same in each.
--
-- Arguments: 1 file of records   2 length of a record in bytes   3 path   4 body

local file, length, head, body

function init(args)
  file, length, body = assert(io.open(args[1], 'rb')), tonumber(args[2]), args[4]
  file:setvbuf('full', 65536)
  head = 'POST ' .. args[3] .. ' HTTP/1.1\r\nHost: ' .. wrk.host .. ':' .. wrk.port ..
    '\r\nContent-Type: application/json\r\nContent-Length: ' .. #body .. '\r\n'
end

function request()
  local buyer = file:read(length)
  if not buyer then
    file:seek('set')
    buyer = file:read(length)
  end
  return head .. buyer .. body
end

-- Answers are not parsed here, because that would cost more than the request. The service counts them by code.
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"micros":%d,"refused":%d,"failed":%d,"p50_us":%d,"p99_us":%d}\n', summary.requests,
    summary.duration, errors.status, errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
