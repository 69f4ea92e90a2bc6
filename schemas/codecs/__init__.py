"""Decodes records (JSON, CSV, Parquet) to batches, and encodes batches. `decoded` has the rules for values."""
