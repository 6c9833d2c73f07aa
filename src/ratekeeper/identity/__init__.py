"""Identifying the client of a request: its address behind proxies, its verified token, its API key, its tier."""
