"""Feedback between operators: a join does not produce results that its consumer cannot use yet (JIT, ICDE 2008)."""
