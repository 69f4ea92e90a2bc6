"""Durable formats and their versions: what a reader does with a version that is not its own.

Whatever outlives a process is read by other versions of Weir: in a rolling upgrade by older ones too. Every format says
its version where any version finds it, and every reader asks `check_format` before it reads on:

| format | where | version | reader |
| --- | --- | --- | --- |
| commit message | offset metadata of each input partition | `"v"` | `schemas.messages.commits` |
| barrier, statistics, feedback | `<group>.control`, `.statistics`, `.feedback` | `"v"` | `schemas.messages.control` |
| queries, groups, members of groups | `weir.queries`, `<group>.members` | `"v"` | `schemas.messages.control` |
| spill events | `<group>.spills` | `"v"` | `schemas.messages.spills` |
| transaction record | `<group>.transactions` | `"v"` | `schemas.messages.prepared` |
| block of intermediate results | internal topics | byte 3, after the magic `WX` | `schemas.codecs.exchange` |
| notice of feedback | internal topics | byte 3, after the magic `WN` | `schemas.codecs.notice` |
| block of source tuples | snapshots, spilled groups, debts | byte 5, after the magic `WEIR` | `schemas.codecs.blocks` |
| manifest of a snapshot | RocksDB below `--state-dir` | `"v"` | `services.recovery.state_store` |
| spill folder | file `weir-spill` in it | the number in its text | `services.spill.block_store` |
| debt | file `debt.json` in a spill folder | `"format"` | `services.spill.backlog` |

- The reader's own version: read. A field that is absent has the value that it had before there was such a field; one
  that is not known is passed over. So a field may be added that older readers may ignore; anything else is a new
  version.
- A newer version: `NewerFormatError`, and nothing is written, deleted or made again instead. A worker stops with that
  line and exit code 1; at its start it looks at commits and control topics before it joins its group.
- No version that ever was, or bytes that are not of the format at all: `StateError`. They are damaged, or another
  program's.

Two things beside have no version, since they may be lost or wrong at no cost but time: the `member` file in a state
folder, and what a member tells its group of the tasks that it has (`services.kafka.assignor`).
"""

from __future__ import annotations

from schemas.errors import NewerFormatError, StateError


def check_format(found: object, reads: int, what: str) -> None:
    """See that a format's version is the reader's own.

    Args:
        found: the version as it was read.
        what: the thing and its place, to begin the message with.

    Raises:
        NewerFormatError: it is of a newer Weir.
        StateError: there is no such version.
    """
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise StateError(f"{what} is damaged: it says format {found!r}, formats are numbered from 1")
    if found > reads:
        raise NewerFormatError(
            f"{what} was written by a newer Weir (format {found}, this one reads {reads}): upgrade this Weir first; "
            "nothing has been changed"
        )
    if found < reads:
        raise StateError(f"{what} has format {found}, this Weir reads {reads}: go on with the Weir that wrote it")
