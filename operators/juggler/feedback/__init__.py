"""Feedback in the shared operator: it sets rows aside that no query can use now, until a query can (JIT V).

Entry: `demand`. Imports the other packages of `operators.juggler` and `operators.feedback`.
"""
