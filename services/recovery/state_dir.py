"""Locks the folder of one worker's state, so that no two processes share it. Entry: `StateDir`.

Several workers may have the same `--state-dir` (a volume shared by replicas). Each worker locks the first free slot
`slot-N`. The next worker to start inherits the slot of a killed worker, with its snapshots and its member id in the
consumer group. The successor uses the id to leave the group on behalf of the dead worker.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path

from schemas.errors import StateError

SLOTS = 1024


class StateDir:
    """A locked slot.

    Attributes:
        path: the slot's folder.
    """

    def __init__(self, root: Path) -> None:
        """Lock a slot below `root`, which is made if missing.

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
        """The folder of a task's table."""
        return self.path / group.replace("/", "_") / f"task-{task}"

    def spill_folder(self, group: str) -> Path:
        """The folder that holds what a group's tasks have spilled while they run."""
        return self.path / group.replace("/", "_") / "spilled"

    def forget(self, group: str) -> None:
        """Delete what a group has stored in the slot."""
        shutil.rmtree(self.path / group.replace("/", "_"), ignore_errors=True)

    def member(self) -> str:
        """The member id of the slot's last process; empty if that process left the group in order."""
        try:
            return (self.path / "member").read_text().strip()
        except OSError:
            return ""

    def remember_member(self, member: str) -> None:
        """Store this process's member id, or an empty text once it has left the group.

        If that fails, a restart only has to wait for the group's session timeout.
        """
        try:
            (self.path / "member").write_text(member)
        except OSError:
            return

    def release(self) -> None:
        """Unlock the slot."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
