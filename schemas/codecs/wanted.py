"""What a decoder reads of each record: `Wanted`."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.codecs.decoded import Value
from schemas.query import Path, Type


@dataclass(frozen=True, slots=True)
class Wanted:
    """A column to read.

    Attributes:
        name: of the column, for messages.
        default: the value where the record's schema does not have the path.
    """

    name: str
    path: Path
    type: Type
    default: Value = None
