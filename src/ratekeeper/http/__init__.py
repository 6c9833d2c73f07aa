"""A verdict as HTTP: header fields in each dialect, status, body."""
