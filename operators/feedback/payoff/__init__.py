"""When feedback pays: which guards watch, and what the tuples that they keep back would have cost.

Entry: `guard`. `path_controller` and `tree_controller` give guards their trials; `tuple_cost` and `tree_cost` estimate
the cost of a tuple.
"""
