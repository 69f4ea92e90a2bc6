"""A worker process: the Faust app, the tasks that the group assigns to it, its health and its HTTP port.

Entry: `worker.Worker`. `assignments` opens and ends tasks as partitions come and go; `task_opener` builds one. Imports
every package of `services` but `batch` and `commands`.
"""
