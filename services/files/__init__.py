"""Files as sources, as reference tables, as queries and as sinks: JSON lines, CSV and Parquet.

Imports no other package of `services`.
"""
