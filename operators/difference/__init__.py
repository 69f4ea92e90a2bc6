"""Continuous set difference, `EXCEPT` (JISC 4.7): a pipeline of operators, each of which subtracts one stream.

`pipeline` is the executor, `difference` one of its operators, and `longest_match` finds how long a row stays covered.
The package imports `operators.join` and below.
"""
