"""`weir bench drift`: how well a join's plan follows data that change. `ops/docs/drift.md` defines the benchmark."""
