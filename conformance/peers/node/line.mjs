// The line protocol for Node: serve(hello, open), where open(name, limits) returns an async check(key, cost).
import fs from 'node:fs'
import readline from 'node:readline'
import { createRequire } from 'node:module'

export const require = createRequire(process.env.NODE_PEERS + '/')
const read = name => JSON.parse(fs.readFileSync(`${process.env.NODE_PEERS}/${name}/package.json`, 'utf8'))
export const version = name => read(name).version
const store = process.argv.find(word => word.includes('://'))
export { store }

export async function serve(hello, open, setTime = () => {}) {
  const limiters = {}
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line)
    let answer = { ok: true }
    try {
      if (asked.op === 'hello') answer = hello
      else if (asked.op === 'open') limiters[asked.name] = await open(asked.name, asked.limits)
      else if (asked.op === 'time') setTime(asked.now)
      else if (asked.op === 'check') {
        try {
          answer = await limiters[asked.limiter](asked.key, asked.cost)
        } catch (error) {
          answer = { allowed: false, error: String(error) }
        }
      } else if (asked.op === 'burst') {
        const calls = Array.from({ length: asked.calls }, () => limiters[asked.limiter](asked.key, 1))
        answer = { admitted: (await Promise.all(calls)).filter(found => found.allowed).length }
      } else if (asked.op === 'flood') {
        for (let number = 0; number < asked.keys; number++) await limiters[asked.limiter](asked.prefix + number, 1)
      } else if (asked.op === 'collect') globalThis.gc()
      else if (asked.op === 'stored') answer = { keys: null }
      else answer = { error: 'op: got ' + asked.op }
    } catch (error) {
      answer = { error: String(error) }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  process.exit(0)
}
