"""Changes the plan of a running query without losing, doubling or reordering a result.

`schedule` starts and ends migrations for the engine, `strategies` lists the strategies, and `advise` chooses one.
"""
