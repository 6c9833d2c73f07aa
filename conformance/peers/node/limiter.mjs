// limiter: its TokenBucket, full at first, as its RateLimiter fills it; RateLimiter adds a window of its own.
import { require, serve, version } from './line.mjs'
const { TokenBucket } = require('limiter')

await serve(
  {
    name: 'limiter',
    version: version('limiter'),
    promises: { algorithms: ['token_bucket'], precision: 1000, features: ['cost', 'refusal_free', 'concurrent'] },
  },
  (name, [limit]) => {
    const all = {}
    return async (key, cost) => {
      if (!all[key]) {
        const interval = limit.period / 1000
        all[key] = new TokenBucket({ bucketSize: limit.burst, tokensPerInterval: limit.count, interval })
        all[key].content = limit.burst
      }
      return { allowed: all[key].tryRemoveTokens(cost) }
    }
  },
)
