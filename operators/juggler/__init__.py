"""One operator that executes many queries (Juggler, WPI 2004); the entry is `operators.juggler.operator`."""
