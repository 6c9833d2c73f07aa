"""What a limiter does beyond one check: wait its turn, settle, renew.  Generators of effects; no I/O."""
