"""The executors: ways to compute one multi-way join. `executor` defines their common interface.

`tree` runs a plan of `binary_join`s, `mjoin` keeps no intermediate results, `eddy` routes every tuple on its own, and
`stairs` is an eddy that keeps states. The package imports `operators.state` and below. To add an executor, implement
`executor.Executor`, name it in `operators.engine.executors`, and add it to the property tests of `tests/operators`.
"""
