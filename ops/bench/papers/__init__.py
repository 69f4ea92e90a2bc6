"""Repeats the experiments of the papers behind Weir: `weir bench jisc|hybmig|jit|juggler|spill`."""
