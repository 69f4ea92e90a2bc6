"""A worker process: the Faust app, the tasks that the group assigns to it, its health and its HTTP port.

Entry: `worker.Worker`. `task_manager` opens and ends tasks as the group assigns and revokes partitions; `task_opener`
takes a task over and finds out where its input starts; `query_tasks`, `operator_tasks` and `group_tasks` build what it
runs. This package imports every package of `services` but `batch`, `broker` and `commands`.
"""
