"""Programs that put one limiter each behind the line protocol or HTTP, as its own documentation has it."""
