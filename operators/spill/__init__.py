"""State spill: partition groups that leave memory, the strategies that choose them, the ledger, the cleanup."""
