"""The kinds of faults: how often each is drawn, and the random parameters of each kind.

`tests.torture.faults` injects them.
"""

from __future__ import annotations

import random
from typing import Any

WORKER_FAULTS = {
    "worker-kill": 4,
    "worker-kill-open": 4,
    "worker-freeze": 3,
    "worker-roll": 2,
    "worker-come": 1,
    "worker-go": 1,
    "state-lost": 2,
    "worker-disk-full": 2,
    "worker-clock": 4,
    "coordinator-kill": 2,
    "net-slow": 2,
    "net-narrow": 2,
    "net-cut": 3,
    "net-dark": 2,
    "retention": 2,
    "topic-grows": 2,
}
"""Faults of workers, their disks, clocks and connections, and of the input's topics."""

FAULTS = {**WORKER_FAULTS, "broker-kill": 5, "broker-restart": 2, "broker-freeze": 2, "broker-disk-full": 1}
"""The faults with one broker."""

CLUSTER_FAULTS = {
    **{kind: max(1, weight // 3) for kind, weight in WORKER_FAULTS.items()},
    "node-kill": 6,
    "node-restart": 2,
    "node-freeze": 4,
    "nodes-roll": 2,
    "split-pair": 4,
    "split-peers": 4,
    "split-all": 4,
}
"""The faults with three brokers. A split isolates two brokers from each other, a broker from its peers, or a broker
from everything."""


def events(rng: random.Random, kind: str, workers: int, session_s: int, brokers: int) -> dict[str, Any]:
    """The random parameters of a fault of a kind: its target, and its duration in seconds."""
    worker, node = rng.randrange(workers), rng.randrange(brokers)
    seconds = round(rng.uniform(1.0, 4.0), 2)
    match kind:
        case "worker-kill":
            return {"worker": worker, "seconds": rng.choice([0.0, 0.0, seconds])}
        case "worker-kill-open":
            return {"worker": worker, "seconds": seconds}
        case "worker-freeze":
            return {"worker": worker, "seconds": round(session_s * rng.uniform(0.3, 1.0) + rng.choice([0, 3]), 2)}
        case "worker-go" | "worker-come" | "state-lost":
            return {"worker": worker, "seconds": seconds}
        case "worker-disk-full":
            return {"worker": worker, "seconds": seconds}
        case "worker-clock":
            # Backwards seconds only: the preloaded clock treats waits that have begun more kindly than a real clock.
            return {"by_s": rng.choice([-5, -2, 5, 60, 3600, 86400])}
        case "net-slow":
            return {"delay_s": rng.choice([0.05, 0.3, 1.0]), "seconds": seconds}
        case "net-narrow":
            return {"bytes_per_s": rng.choice([5_000, 50_000, 500_000]), "seconds": seconds}
        case "net-cut":
            return {"times": rng.randint(1, 6), "seconds": seconds}
        case "net-dark":
            return {"seconds": round(rng.uniform(1, 9), 2)}
        case "broker-freeze" | "node-freeze":
            return {"node": node, "seconds": round(rng.uniform(1, 10), 2)}
        case "broker-kill" | "broker-restart" | "node-kill" | "node-restart":
            return {"node": node, "seconds": rng.choice([0.0, 0.0, seconds])}
        case "broker-disk-full":
            return {"node": node, "seconds": seconds}
        case "split-pair" | "split-peers" | "split-all":
            return {"node": node, "other": (node + rng.randint(1, max(1, brokers - 1))) % brokers,
                    "seconds": round(rng.uniform(2, 12), 2)}  # fmt: skip
    return {}
