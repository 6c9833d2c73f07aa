"""Sinks for the events of a policy: ``log``, ``prometheus`` and ``opentelemetry``.

policy.listen(LoggingSink())
"""
