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
        self._began = {first.name: (0, first)}
        self._ended: dict[str, int] = {}

    def change(self, engine: GroupEngine, data: st.DataObject) -> None:
        """Let some come that have not been there, and some go."""
        for query in list(self._waiting):
            if data.draw(st.booleans()):
                self._waiting.remove(query)
                from_now = data.draw(st.booleans())
                seen = engine.add(query, from_now=from_now)
                assert not from_now or set(seen.values()) <= {engine.cut}
                self.running[query.name], self.since[query.name] = query, seen
                self._began[query.name] = engine.cut, seeing(query, seen)
        for name in engine.names:
            if data.draw(st.integers(0, 3)) == 0:
                engine.drop(name)
                del self.running[name]
                self.since.pop(name, None)
                self._ended[name] = engine.cut

    def judge(
        self, got: Mapping[str, list[dict[str, Any]]], late: Mapping[str, list[dict[str, Any]]] | None = None
    ) -> None:
        """Between its beginning and its end a query gives what it gives alone of the tuples that it sees, in order but
        for what comes late; whoever else comes and goes."""
        assert set(got) == {query.name for query in self._case.queries}
        for query in self._case.queries:
            expected = []
            if query.name in self._began:
                begin, sees = self._began[query.name]
                end = self._ended.get(query.name, 2**63)
                rows = oracle.results(sees, self._case.given(query))
                expected = [row for row in rows if begin <= row["_ts"] < end]
            assert canonical(got[query.name] + (late or {}).get(query.name, [])) == canonical(expected)
            times = [row["_ts"] for row in got[query.name]]
            assert times == sorted(times)
