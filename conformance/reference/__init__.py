"""Two tiny limiters that ship with the suite: one that keeps every law, and one with ten planted bugs."""
