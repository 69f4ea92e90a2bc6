"""Repeats the experiments of the state spill paper: `weir bench spill`."""
