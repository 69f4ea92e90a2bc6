"""Runs one task: a query, or a group of queries, on one set of partitions, in its own thread. Entry: `task.Task`.

`lane` and `block_lane` feed the engine, `query_program` and `group_program` run it, and `task` ends epochs and commits
them. May import every package of `services` except `worker`, `batch` and `commands`.
"""
