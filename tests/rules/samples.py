"""Rules for several tests: a file that uses every word, and the smallest rule."""

EVERYTHING = """
store = "memory://"
on_store_error = "local"
trusted_proxies = ["10.0.0.0/8"]

[identity]
user = ["jwt:sub", "header:X-Api-Key"]
ipv6_prefix = 64

[tiers]
from = "jwt:plan"
default = "free"

[[rules]]
name = "per-ip"
by = "ip"
limit = "300/minute"

[[rules]]
name = "search"
match = "GET /api/public/search"
by = "user"
algorithm = "sliding_window"
limit = { free = "100/minute", paid = "1000/minute", enterprise = "unlimited" }
warn_at = 0.8
grace = 1

[[rules]]
name = "login"
match = "POST /login"
by = ["ip", "user"]
limit = ["5/minute", "50/day"]
on_store_error = "deny"
penalty = { after = 5, within = "10 minutes", block = "1 hour" }

[[rules]]
name = "whole-site"
by = "all"
limit = "10000/second"
scope = "fleet"
mode = "shadow"

[[rules]]
name = "admin"
match = "/api/admin/**"
allow_from = ["10.0.0.0/8"]
"""


def rule(**own):
    return {"rules": [{"name": "r", "limit": "1/minute", **own}]}
