-- HAProxy asks ratekeeper before each request.  The argument says what happens if ratekeeper fails: "open" or "closed".
-- A verdict of ratekeeper has X-RateLimit-Status if it refuses; any other 5xx comes from a failure.
local fields = {
  "ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset",
}
-- Of this connection, or written below: a client's own must not be passed on.
local dropped = {
  ["connection"] = true, ["content-length"] = true, ["expect"] = true, ["host"] = true, ["keep-alive"] = true,
  ["proxy-connection"] = true, ["te"] = true, ["trailer"] = true, ["transfer-encoding"] = true, ["upgrade"] = true,
  ["x-forwarded-for"] = true, ["x-original-host"] = true, ["x-original-method"] = true, ["x-original-uri"] = true,
  ["x-original-url"] = true,
}

local function question(txn)
  local headers = {}
  for name, values in pairs(txn.http:req_get_headers()) do
    if not dropped[name] then
      headers[name] = {}
      for number = 0, #values do
        headers[name][number + 1] = values[number]
      end
    end
  end
  headers["host"] = { "ratekeeper" }
  headers["x-original-method"] = { txn.sf:method() }
  headers["x-original-uri"] = { txn.sf:pathq() }
  headers["x-original-host"] = { txn.sf:req_hdr("host") or "" }
  headers["x-forwarded-for"] = { txn.sf:src() }
  return headers
end

local function refuse(txn, status, answer)
  local reply = txn:reply{ status = status }
  if answer then
    for name, values in pairs(answer.headers) do
      if name ~= "connection" and name ~= "content-length" and name ~= "transfer-encoding" then
        for number = 0, #values do
          reply:add_header(name, values[number])
        end
      end
    end
    reply:set_body(answer.body)
  else
    reply:add_header("retry-after", "1")
    reply:add_header("cache-control", "no-store")
  end
  txn:done(reply)
end

core.register_action("ratekeeper", { "http-req" }, function(txn, when_failing)
  local answer = core.httpclient():get{
    url = "http://ratekeeper/v1/auth/original",
    dst = "abns@ratekeeper",
    timeout = 500,
    headers = question(txn),
  }
  local status = answer and answer.status or 0
  if status == 200 then
    for _, name in ipairs(fields) do
      local values = answer.headers[name]
      if values then
        txn:set_var("txn." .. name:gsub("-", "_"), values[0])
      end
    end
  elseif status == 0 or status >= 500 and not answer.headers["x-ratelimit-status"] then
    if when_failing ~= "open" then
      refuse(txn, 503)
    end
  elseif status >= 400 then
    refuse(txn, status, answer)
  else  -- not an answer of ratekeeper
    refuse(txn, 403)
  end
end, 1)
