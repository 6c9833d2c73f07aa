"""The gRPC listener: Envoy's rate limit service and its configuration files."""
