"""Files: sources, reference tables, query texts and sinks, as JSON lines, CSV and Parquet; tables of blocks in RocksDB.

Imports no other package of `services`.
"""
