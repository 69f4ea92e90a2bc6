"""Durable formats and their versions: what a reader does with a version that is not its own.

Whatever outlives a process is read by other versions of Weir, and during a rolling upgrade also by older ones. Every
format stores its version where any version finds it, and every reader calls `check_format` before it reads on:

| format | where | version | reader |
| --- | --- | --- | --- |
| commit message | offset metadata of each input partition | `"v"` | `schemas.messages.commits` |
| barrier, statistics, feedback | `<group>.control`, `.statistics`, `.feedback` | `"v"` | `schemas.messages.control` |
| queries, groups, members of groups | `weir.queries`, `<group>.members` | `"v"` | `schemas.messages.control` |
| spill events | `<group>.spills` | `"v"` | `schemas.messages.spills` |
| repeats | `<group>.repeats` | `"v"` | `schemas.messages.repeats` |
| transaction record | `<group>.transactions` | `"v"` | `schemas.messages.prepared` |
| block of intermediate results | internal topics | byte 3, after the magic `WX` | `schemas.codecs.exchange` |
| notice of feedback | internal topics | byte 3, after the magic `WN` | `schemas.codecs.notice` |
| block of source tuples | snapshots, spilled state | byte 5, after the magic `WEIR` | `schemas.codecs.blocks` |
| manifest of a snapshot | RocksDB below `--state-dir` | `"v"` | `services.recovery.state_store` |
| spill folder | file `weir-spill` in it | the number in its text | `services.spill.block_store` |
| backlog | file `debt.json` in a spill folder | `"format"` | `services.spill.backlog` |

- The reader's own version: read. An absent field has the value that it had before the field existed; an unknown field
  is ignored. So a field may be added if older readers may ignore it; any other change is a new version.
- A newer version: `NewerFormatError`, and nothing is written, deleted or rebuilt. A worker stops with that error line
  and exit code 1; at its start it looks at commits and control topics before it joins its group.
- An older version: `StateError`, unless the reader has code for it that runs before `check_format`.
- A version that never existed, or bytes that are not of the format at all: `StateError`. They are damaged, or belong to
  another program.

Two more things have no version, since they may be lost or wrong at no cost but time: the `member` file in a state
folder, and the list of its tasks that a member sends to its consumer group (`services.kafka.assignor`).
"""

from __future__ import annotations

from schemas.errors import NewerFormatError, StateError


def check_format(found: object, reads: int, what: str) -> None:
    """Check that a format's version is the reader's own.

    Args:
        found: the version that was read.
        reads: the version that the reader supports.
        what: the thing and where it is, to begin the message with.

    Raises:
        NewerFormatError: a newer Weir wrote it.
        StateError: no such version exists, or it is older than the reader's.
    """
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise StateError(f"{what} is damaged: it says format {found!r}, formats are numbered from 1")
    if found > reads:
        raise NewerFormatError(
            f"{what} was written by a newer Weir (format {found}, this one reads {reads}): upgrade this Weir first; "
            "nothing has been changed"
        )
    if found < reads:
        raise StateError(f"{what} has format {found}, this Weir reads {reads}: use the Weir that wrote it")
