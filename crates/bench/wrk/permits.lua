-- Purpose: sends one limiter check per request, for one key or for many keys in turn.
--
-- Arguments: 1 path   2 header lines, each ending in \n   3 body, in which %s is the key   4 number of keys

local requests, at = {}, 0

function init(args)
  local head = 'POST ' .. args[1] .. ' HTTP/1.1\r\nHost: ' .. wrk.host .. ':' .. wrk.port ..
    '\r\nContent-Type: application/json\r\n' .. string.gsub(args[2], '\\n', '\r\n')
  for n = 1, tonumber(args[4]) do
    local body = string.format(args[3], 'key' .. n)
    requests[n] = head .. 'Content-Length: ' .. #body .. '\r\n\r\n' .. body
  end
end

function request()
  at = at % #requests + 1
  return requests[at]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"micros":%d,"refused":%d,"failed":%d,"p50_us":%d,"p99_us":%d}\n', summary.requests,
    summary.duration, errors.status, errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
