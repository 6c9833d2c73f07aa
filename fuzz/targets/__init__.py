"""One module for each place; each has ``check(data)``."""
