"""Repeats the experiments of the JIT paper: `weir bench jit`."""
