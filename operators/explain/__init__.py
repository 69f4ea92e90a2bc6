"""Prints plans: as they would run (`explain`), and as they did run, beside what was expected (`analyze`).

Imports any package of `operators`; the command line and the tasks' reports import it.
"""
