"""One task: a query, or a group of queries, on one set of partitions, in a thread of its own. Entry: `task.Task`.

`lane` and `block_lane` feed the engine, `query_program` and `group_program` run it, `task` ends epochs and commits
them. May import every package of `services` but `worker`, `batch` and `commands`.
"""
