"""Rules files: read, validated, compiled to counters, and used to decide requests."""
