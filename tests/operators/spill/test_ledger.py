"""The number of pending pairs: those that a merge of the group's parts would compare."""

from __future__ import annotations

import numpy as np

from operators.data.watermark import END, NEVER
from operators.spill.ledger import Ledger
from operators.spill.spilled_part import SpilledPart, SpilledPiece
from schemas.columns import I64


def part(left: int, right: int, since: int, *, late: bool = False) -> SpilledPart:
    """A part with so many tuples."""
    a, b = ((SpilledPiece(rows, END, "block"),) if rows else () for rows in (left, right))
    return SpilledPart((a, b), since, late)


def counts(*groups: int) -> I64:
    return np.array(groups, np.int64)


def shown(ledger: Ledger) -> dict[int, list[int]]:
    return {join: since.tolist() for join, since in ledger.unjoined_since(2).items()}


def test_pending_pairs() -> None:
    ledger = Ledger([], [])
    nothing = {0: (counts(0, 0), counts(0, 0))}
    assert ledger.pending_pairs(nothing) == 0
    assert ledger.unjoined_since(2) == {}
    ledger.add((0, 1), part(2, 3, 10))
    assert ledger.pending_pairs(nothing) == 0, "tuples of a part have been joined with each other"
    ledger.add((0, 1), part(1, 0, 10))
    ledger.add((0, 1), part(0, 1, 10))
    assert ledger.pending_pairs(nothing) == 0, "and with those of the same age"
    ledger.add((0, 1), part(0, 4, 20))
    assert ledger.pending_pairs(nothing) == 4 * 3
    assert shown(ledger) == {0: [END, 10]}
    ledger.add((0, 1), part(5, 0, NEVER, late=True))
    ledger.add((0, 1), part(0, 1, NEVER, late=True))
    assert ledger.pending_pairs(nothing) == 4 * 3 + 5 * 8 + 1 * 8
    ledger.add((0, 0), part(7, 7, 15))
    memory = {0: (counts(0, 1), counts(0, 2))}
    assert ledger.pending_pairs(memory) == 4 * 3 + 5 * 8 + 1 * 8 + 1 * 9 + 2 * 8
    assert shown(ledger) == {0: [15, NEVER]}
    ledger.add((1, 0), part(1, 1, 15))
    assert shown(ledger) == {0: [15, NEVER], 1: [15, END]}
    memory[1] = counts(3, 0), counts(0, 0)
    assert ledger.pending_pairs(memory) == 4 * 3 + 5 * 8 + 1 * 8 + 1 * 9 + 2 * 8 + 3
