"""What runs: the command line, the Faust worker, its transport, metrics and settings."""
