"""``ratekeeper serve``: one decision server for HTTP, proxies, Envoy and Redis clients.

A door speaks one protocol (``http``, ``resp``, ``envoy``); behind all of them stands one ``Keeper`` with one policy,
one store and one tally.  Doors decide nothing.
"""
