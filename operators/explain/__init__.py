"""Prints plans: as they would run (`explain`), and as they did run, beside the expected figures (`analyze`).

The package may import any package of `operators`. The command line and the tasks' reports import it.
"""
