"""What tasks run: one query (`query_program`) or a group of queries (`group_program`), and their changes at run time.

Implements the interfaces of `services.task.program`; `services.worker.task_kind` chooses. May import every package of
`services` except `worker`, `batch` and `commands`.
"""
