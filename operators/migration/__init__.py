"""Changing the plan of a running query without losing, doubling or reordering a result."""
