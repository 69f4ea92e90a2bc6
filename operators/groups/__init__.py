"""Query groups: several queries over the same input streams, in one engine; see `operators.groups.engine`."""
