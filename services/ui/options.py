"""How a page is served: `PageOptions`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from services.formats.registry_access import RegistryAccess


@dataclass(frozen=True, slots=True)
class PageOptions:
    """How a page is served.

    Attributes:
        bind, port, names: as in `PageServer`.
        hide_values: as in `Rows`.
        changes: whether the page may change the plan, or the queries of a group.
        access: as in `Rows`.
        query: the arguments with which the user has named the query, for the commands that the page shows.
    """

    bind: str = "127.0.0.1"
    port: int = 0
    names: Collection[str] = ()
    hide_values: bool = False
    changes: bool = False
    query: Sequence[str] = ("QUERY",)
    access: RegistryAccess = field(default_factory=RegistryAccess)


LOOPBACK = PageOptions()
"""For this machine alone, at a free port."""
