"""Plans: binary trees over the streams of a query, where each predicate acts in one, and which one to begin with.

`plan` is the tree, `predicates` and `equalities` place conditions in it, and `choose` picks a tree from statistics.
Imports `operators.data`. A new kind of condition is placed in `predicates`, and then evaluated in
`operators.state.match`.
"""
