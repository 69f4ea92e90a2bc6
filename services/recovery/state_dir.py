"""The folder of one worker's state: locked, so that no two processes share it.

`--state-dir` may be given to several workers (a volume shared by replicas): each takes the first slot
`slot-N` that nobody has locked. A worker that was killed leaves its slot to whoever starts next, with its
snapshots and its member id in the consumer group, which the successor uses to take leave for the dead.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from schemas.errors import StateError

SLOTS = 1024


class StateDir:
    """A locked slot.

    Attributes:
        path: its folder.
    """

    def __init__(self, root: Path) -> None:
        """Lock a slot below `root`, made when missing.

        Raises:
            StateError: the folder cannot be used; the message says why.
        """
        self._lock = -1
        try:
            for number in range(SLOTS):
                self.path = root / f"slot-{number}"
                self.path.mkdir(parents=True, exist_ok=True)
                if self._try_lock():
                    return
        except OSError as error:
            raise StateError(f"state directory {root} cannot be used: {error.strerror or error}") from None
        raise StateError(f"state directory {root} has {SLOTS} slots and all are in use")

    def _try_lock(self) -> bool:
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        self._lock = lock
        return True

    def table(self, group: str, task: int) -> Path:
        """Where a task's table lives."""
        return self.path / group.replace("/", "_") / f"task-{task}"

    def spilled(self, group: str) -> Path:
        """Where what its tasks have spilled lives while they run."""
        return self.path / group.replace("/", "_") / "spilled"

    def member(self) -> str:
        """The group member that the slot's last process was; empty when it left as it should."""
        try:
            return (self.path / "member").read_text().strip()
        except OSError:
            return ""

    def remember_member(self, member: str) -> None:
        """Note this process's member id, or with an empty text that it has left. Failing costs a restart
        nothing but the group's session timeout."""
        try:
            (self.path / "member").write_text(member)
        except OSError:
            return

    def release(self) -> None:
        """Unlock the slot."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
