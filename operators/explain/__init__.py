"""Prints plans: as they would run (`explain`), and as they did run, beside the expected figures (`analyze`).

The package imports `operators.data`, `operators.plan` and `operators.migration`. It is imported
by `operators.groups`, `services.batch`, `services.commands` and `services.control`.
"""
