"""Who sent a request: its facts, its address behind proxies, its verified token, its tier."""
