// rate-limiter-flexible: a window that starts with the first call, in memory or on Redis.
import { require, serve, store, version } from './line.mjs'
const { RateLimiterMemory, RateLimiterRedis, RateLimiterRes } = require('rate-limiter-flexible')
const client = store && new (require('ioredis'))(store, { enableOfflineQueue: false, lazyConnect: true })
if (client) await client.connect()
const features = ['cost', 'remaining', 'retry_after', 'keys', 'concurrent']

await serve(
  {
    name: 'rate-limiter-flexible',
    version: version('rate-limiter-flexible'),
    promises: {
      algorithms: ['first_use_window'],
      resolution: 1000,
      precision: 1000, // it counts milliseconds
      features: features.concat(store ? ['processes', 'expiry'] : ['bounded_memory']),
      store: store ? 'redis' : 'memory',
    },
  },
  (name, [limit]) => {
    const options = { points: limit.count, duration: limit.period / 1e6, keyPrefix: name }
    const limiter = store ? new RateLimiterRedis({ ...options, storeClient: client }) : new RateLimiterMemory(options)
    const told = (allowed, found) => ({
      allowed,
      remaining: found.remainingPoints,
      ...(allowed ? {} : { retry_after: Math.ceil(found.msBeforeNext * 1000) }),
    })
    return async (key, cost) => {
      try {
        return told(true, await limiter.consume(key, cost))
      } catch (refused) {
        if (!(refused instanceof RateLimiterRes)) throw refused
        return told(false, refused)
      }
    }
  },
)
