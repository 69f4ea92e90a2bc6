"""The basics of every Weir process: logs, metrics, memory, settings, security, compiled kernels.

The lowest package of `services`: it imports none of the others but `services.broker.maven` (the cache folder).
"""
