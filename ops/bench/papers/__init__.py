"""The experiments of the papers behind Weir, repeated: `weir bench jisc|hybmig|jit|juggler|spill`."""
