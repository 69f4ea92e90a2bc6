"""Many queries in one operator (Juggler, WPI 2004): see `operators.juggler.operator`."""
