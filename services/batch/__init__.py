"""`weir run`: queries over files, without Kafka. Entry: `query_run` for one query, `group_run` for several.

Imports `services.files` and `services.spill`.
"""
