-- Purpose: buyers.lua at many sales: each request is for the next buyer of a file, and for the next of some sales.
--
-- Arguments: 1 file of records (buyers.lua)   2 length of a record in bytes   3 number of the first record
--            4 file of sales, a line each: path, tab, body

local file, length
local heads, bodies, at = {}, {}, 0

function init(args)
  file, length = assert(io.open(args[1], 'rb')), tonumber(args[2])
  file:setvbuf('full', 65536)
  file:seek('set', tonumber(args[3]) * length)
  for line in io.lines(args[4]) do
    local path, body = line:match('^([^\t]+)\t(.+)$')
    heads[#heads + 1] = 'POST ' .. path .. ' HTTP/1.1\r\nHost: ' .. wrk.host .. ':' .. wrk.port ..
      '\r\nContent-Type: application/json\r\nContent-Length: ' .. #body .. '\r\n'
    bodies[#bodies + 1] = body
  end
end

function request()
  local buyer = file:read(length)
  if not buyer then
    file:seek('set')
    buyer = file:read(length)
  end
  at = at % #heads + 1
  return heads[at] .. buyer .. bodies[at]
end

-- Answers are not parsed here, because that would cost more than the request. The service counts them by code.
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"micros":%d,"refused":%d,"failed":%d,"p50_us":%d,"p99_us":%d}\n', summary.requests,
    summary.duration, errors.status, errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
