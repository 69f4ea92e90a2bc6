"""Feedback in the shared operator: rows that no query can use now are set aside until one can (JIT V).

Entry: `demand`. Imports the other packages of `operators.juggler` and `operators.feedback`.
"""
