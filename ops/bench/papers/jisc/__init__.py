"""Repeats the experiments of the JISC paper: `weir bench jisc`."""
