-- Twin of concurrency.py.  Like that it is a sliding log with another refund: it stands behind sliding_log.lua.

local function refund(state, from, now, cost, taken_at)
  local past = bisect_right(state, taken_at)
  cost = math.min(cost, past - bisect_right(state, taken_at - 1))
  ahead = ahead or #state > 0 and unpack('>I7', state, #state - 6) > now
  return string.sub(state, 1, (past - cost) * 7) .. string.sub(state, past * 7 + 1), from + #state
end

return decide, refund
