"""The data that operators exchange: tuples, watermarks, join keys, and the evaluation of expressions over columns.

This is the lowest package of the engine. It imports only `operators.kernels` and `schemas`; every other package imports
it. Start with `tuples`: an intermediate result stores one row id per source, not values.
"""
