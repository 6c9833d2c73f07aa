-- Twin of concurrency.py.  Like that it is a sliding log with another refund: it stands behind sliding_log.lua.

local refund_log = refund

local function refund(state, from, now, cost, taken_at)
  local taken_then = bisect_right(state, taken_at) - bisect_right(state, taken_at - 1)
  return refund_log(state, from, now, math.min(cost, taken_then), taken_at)
end

return decide, refund
