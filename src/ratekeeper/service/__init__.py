"""``ratekeeper serve``: one decision server for HTTP, proxies, Envoy and Redis clients.

A listener speaks one protocol: ``http`` HTTP/1.1, ``resp`` the Redis protocol, ``envoy`` gRPC.  All listeners of a
worker share one ``Decider`` with one policy, one store and one set of counters.  Listeners decide nothing.
"""
