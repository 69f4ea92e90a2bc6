"""Continuous set difference, `EXCEPT` (JISC 4.7): operators in a row, each of which subtracts one stream.

`pipeline` is the executor, `difference` one of its operators, and `longest_match` finds until when a row stays covered.
Imports `operators.join` and below.
"""
