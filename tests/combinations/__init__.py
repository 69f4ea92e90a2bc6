"""Every pair of features and settings, and random further ones beside them, on random queries and data.

`traits` says what can be combined and makes queries that have given features; `runs` executes them with given settings.
"""
