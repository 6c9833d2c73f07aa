// bottleneck: a reservoir that is filled anew every period, and no queue: what does not fit now is dropped.
import { require, serve, version } from './line.mjs'
const Bottleneck = require('bottleneck')

await serve(
  {
    name: 'bottleneck',
    version: version('bottleneck'),
    promises: {
      algorithms: ['fixed_window'], units: [1, 60, 3600], features: ['cost', 'refusal_free', 'concurrent'],
      note: 'its windows start with the limiter, and are looked at every 250 ms', precision: 250000,
    },
  },
  (name, [limit]) => {
    const all = {}
    return async (key, cost) => {
      all[key] ??= new Bottleneck({
        reservoir: limit.count, reservoirRefreshAmount: limit.count, reservoirRefreshInterval: limit.period / 1000,
        highWater: 0, strategy: Bottleneck.strategy.OVERFLOW,
      })
      try {
        await all[key].schedule({ weight: cost }, async () => true)
        return { allowed: true }
      } catch (refused) {
        return { allowed: false, ...(refused instanceof Bottleneck.BottleneckError ? {} : { error: String(refused) }) }
      }
    }
  },
)
