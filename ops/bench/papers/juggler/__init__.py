"""Repeats the experiments of the Juggler paper: `weir bench juggler`."""
