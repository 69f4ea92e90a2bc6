"""What operators pass to each other: tuples, watermarks, join keys, and the evaluation of expressions over columns.

The lowest package of the engine. It imports `operators.kernels` and `schemas` only, and every other package imports it.
Start with `tuples`: an intermediate result is a set of row ids, one per source, and not values.
"""
