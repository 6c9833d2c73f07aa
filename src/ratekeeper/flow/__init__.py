"""What a limiter does beyond one check: wait for a turn, settle, renew.  Generators of effects; no I/O."""
