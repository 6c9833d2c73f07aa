"""The HTTP listener: the JSON API, forward auth, metrics, health, the dashboard."""
