"""The control topics: plan changes agreed on by a barrier, feedback between tasks, and their statistics.

`barrier` folds the log, message by message; `coordination` decides, `participant` answers for a task. `coordinator` is
the process. Imports `services.placement`, `services.recovery`, `services.kafka`, `services.process`.
"""
