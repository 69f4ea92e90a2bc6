"""Repeats the experiments of the HybMig paper: `weir bench hybmig`."""
