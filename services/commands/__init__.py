"""The subcommands of `weir`, one module each; heavy imports stay inside the functions."""
