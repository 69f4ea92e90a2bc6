"""What runs: the command line, the Faust worker, its transport, metrics and settings."""

import os

# Arrow chooses its pool when it is loaded. Its default keeps what one snapshot needed until the next one (measured
# in a worker: 30 bytes per live source tuple); malloc gives it back.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
