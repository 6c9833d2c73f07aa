"""Stores on any backend that has ``get`` and ``compare-and-set``: the rules run here, the backend keeps records."""
