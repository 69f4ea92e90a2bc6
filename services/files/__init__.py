"""Files: sources, reference tables, query texts and sinks, as JSON lines, CSV and Parquet.

Imports no other package of `services`.
"""
