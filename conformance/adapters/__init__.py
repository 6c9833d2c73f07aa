"""Adapters for targets that are servers: HTTP, Redis clients (CL.THROTTLE), and Envoy's rate limit service."""
