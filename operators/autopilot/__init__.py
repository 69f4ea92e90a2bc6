"""Finds better plans for a running query and changes to them: `autopilot.Autopilot`, after each epoch.

From the inside out: `join_sample` joins samples of the living tuples; `evidence` makes rates and selectivities of it,
with their uncertainty; `sizes` derives the size of every sub-plan, `search` the cheapest plan; `rule` weighs a change
against its cost; `pace` limits what measuring costs; `adaptation` is the record of a decision. The results of a query
never depend on any of this. The package imports `operators.engine` and `operators.migration`.
"""
