"""Several queries over one intake: see `operators.groups.engine`."""
