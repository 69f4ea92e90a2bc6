"""Registered queries and groups of queries, in the compacted topic `weir.queries`.

Imports `services.files` (query files), `services.kafka` and `services.process`.
"""
