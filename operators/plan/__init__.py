"""Plans: the trees by which a query is joined, the predicates that act at each node, and the choice of a first plan.

`plan` defines the tree, `predicates` and `equalities` place conditions in it, and `choose` chooses a tree from
statistics. The package imports `operators.data`. To add a kind of condition, place it in `predicates` and evaluate it
in `operators.state.match`.
"""
