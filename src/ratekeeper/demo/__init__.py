"""Live demonstrations: ``python -m ratekeeper.demo``."""
