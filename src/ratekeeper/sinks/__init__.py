"""Ready-made sinks for events: logs, Prometheus, OpenTelemetry.

policy.listen(LoggingSink())
"""
