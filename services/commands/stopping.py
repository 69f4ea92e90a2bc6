"""Lets a command that serves run until it is stopped: `stop_event`."""

from __future__ import annotations

import signal
import threading


def stop_event() -> threading.Event:
    """Return what SIGINT or SIGTERM sets, from now on."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stopped.set())
    return stopped
