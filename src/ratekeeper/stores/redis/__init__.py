"""State on Redis or Valkey: one script, batched commands, a deadline, a breaker and a fallback."""
