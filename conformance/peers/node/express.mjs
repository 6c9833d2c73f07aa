// express-rate-limit: one middleware for each limit, its memory store, the current standard headers on.
import { createRequire } from 'node:module'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

const here = path.dirname(fileURLToPath(import.meta.url))
const require = createRequire(path.join(here, '../../../build/conformance/node/'))
const express = require('express')
const { rateLimit } = require('express-rate-limit')

const app = express()
const all = {}
app.get('/:count/:seconds/:name', (request, response) => {
  all[request.path] ??= rateLimit({
    windowMs: Number(request.params.seconds) * 1000,
    limit: Number(request.params.count),
    standardHeaders: 'draft-8',
    legacyHeaders: false,
    keyGenerator: asked => asked.get('X-Conformance-Key'),
    validate: false, // it warns of a limiter that is made in a handler; here the suite names its limits
  })
  all[request.path](request, response, () => response.json({ ok: true }))
})
app.listen(Number(process.argv[2]), '127.0.0.1')
