"""The control topics: plan changes agreed on by a barrier, feedback between tasks, and their statistics.

`barrier` folds the log, message by message. `coordination` decides, `participant` answers for a task, `coordinator`
runs the process of `weir coordinator`. Imports `services.placement`, `services.recovery`, `services.kafka`,
`services.process`.
"""
