"""What tasks run: one query (`query_program`) or a group of queries (`group_program`), and their changes at run time.

Implements the interfaces of `services.task.program`. `PlanRunner._task_kind` in `services.worker.plan_runner` chooses
between them. May import every package of `services` except `worker`, `batch` and `commands`.
"""
