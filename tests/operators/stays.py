"""Queries of a group that come and go while it runs, and what each must give of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from operators.groups.engine import GroupEngine
from schemas.groups import seeing
from schemas.query import Query
from tests import oracle
from tests.feeding import canonical
from tests.group_cases import GroupCase


class Stays:
    """When queries came and went; the first of the case is there from the beginning.

    Attributes:
        running: those that are there, by name.
        since: what `add` told of them.
    """

    def __init__(self, case: GroupCase) -> None:
        first, *waiting = case.queries
        self.running: dict[str, Query] = {first.name: first}
        self.since: dict[str, dict[str, int]] = {}
        self._case = case
        self._waiting = waiting
        self._begun: dict[str, tuple[int, Query]] = {first.name: (0, first)}
        # Of stays that are over: begin, the query with what it saw, end.
        self._over: list[tuple[int, Query, int]] = []

    def change(self, engine: GroupEngine, data: st.DataObject) -> None:
        """Let some go and some come, in this order or the other; one that went may come back at the same cut."""
        steps = [self._leave, self._come]
        for step in steps if data.draw(st.booleans()) else steps[::-1]:
            step(engine, data)

    def replace(self, engine: GroupEngine, data: st.DataObject) -> None:
        """Let some go and come back at the same cut."""
        for name in engine.names:
            if data.draw(st.booleans()):
                self._go(engine, name)
        self._come(engine, data, always=True)

    def _leave(self, engine: GroupEngine, data: st.DataObject) -> None:
        for name in engine.names:
            if data.draw(st.integers(0, 3)) == 0:
                self._go(engine, name)

    def _go(self, engine: GroupEngine, name: str) -> None:
        engine.drop(name)
        self._waiting.append(self._of(name))
        del self.running[name]
        self.since.pop(name, None)
        self._over.append((*self._begun.pop(name), engine.cut))

    def _come(self, engine: GroupEngine, data: st.DataObject, *, always: bool = False) -> None:
        for query in list(self._waiting):
            if always or data.draw(st.booleans()):
                self._waiting.remove(query)
                from_now = data.draw(st.booleans())
                seen = engine.add(query, from_now=from_now)
                assert not from_now or set(seen.values()) <= {engine.cut}
                self.running[query.name], self.since[query.name] = query, seen
                self._begun[query.name] = engine.cut, seeing(query, seen)

    def _of(self, name: str) -> Query:
        return next(query for query in self._case.queries if query.name == name)

    def judge(
        self, got: Mapping[str, list[dict[str, Any]]], late: Mapping[str, list[dict[str, Any]]] | None = None
    ) -> None:
        """Between each beginning and end a query gives what it gives alone of the tuples that it sees, in order but for
        what comes late; whoever else comes and goes."""
        assert set(got) == {query.name for query in self._case.queries}
        for query in self._case.queries:
            stays = [*self._over, *((*begun, 2**63) for begun in self._begun.values())]
            expected = [
                row
                for begin, sees, end in stays
                if sees.name == query.name
                for row in oracle.results(sees, self._case.given(query))
                if begin <= row["_ts"] < end
            ]
            assert canonical(got[query.name] + (late or {}).get(query.name, [])) == canonical(expected)
            times = [row["_ts"] for row in got[query.name]]
            assert times == sorted(times)
