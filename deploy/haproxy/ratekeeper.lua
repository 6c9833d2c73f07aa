-- HAProxy calls ratekeeper before each request.  If ratekeeper does not answer within 250 ms, the request passes.
core.register_action("ratekeeper", { "http-req" }, function(txn, place)
  local client = core.httpclient()
  local answer = client:get{
    url = "http://" .. place .. "/v1/auth?headers=original",
    timeout = 250,
    headers = {
      ["x-original-method"] = { txn.sf:method() },
      ["x-original-uri"] = { txn.sf:pathq() },
      ["x-forwarded-for"] = { txn.sf:src() },
    },
  }
  if answer and answer.status == 429 then
    txn:set_var("txn.limited", true)
    local after = answer.headers["retry-after"]
    txn:set_var("txn.retry_after", after and after[0] or "1")
  end
end, 1)
