"""Cuts an epoch into slices: what is processed together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from schemas.columns import Batch

SLICE_TUPLES = 32_768
"""Tuples processed together: enough to amortise a call, few enough to stay in the cache."""

SLICE_MADE_TUPLES = 262_144
"""Intermediate results that a slice makes at most, if it makes as many per tuple as there were so far."""

SLICE_LEAST_TUPLES = 1_024
"""Slices are made no smaller than this to fit a short window."""

SAMPLES_PER_SLICE = 8
"""Timestamps looked at per slice to place its end: k streams make it at most 1 + k / 8 times too large."""


def slices(
    batches: Mapping[str, Batch],
    cut: int,
    *,
    made: float,
    window: int,
    rows: Iterable[int] = (),
    least: int = 0,
    fewest: int | None = None,
) -> Iterator[tuple[dict[str, Batch], int]]:
    """Cut an epoch by event time into pieces that suit the cache and the shortest window.

    Every stream is sampled, SAMPLES_PER_SLICE times as finely as slices are cut, so that slices stay small where one
    stream is dense and another has nothing.

    Args:
        batches: the epoch's tuples by stream, ascending by ts, all before `cut`.
        made: intermediate results per tuple, as there were so far.
        window: the shortest, in ms; rows: those that count tuples.
        least: so many pieces at least.
        fewest: tuples of a slice that is to fit a short window; None for SLICE_LEAST_TUPLES.

    Returns:
        Each slice's tuples, and the event time that it ends before.
    """
    total = sum(len(batch) for batch in batches.values())
    if total == 0:
        yield {}, cut
        return
    span = max(int(b.ts[-1]) for b in batches.values()) - min(int(b.ts[0]) for b in batches.values())
    pieces = max(-(-total // SLICE_TUPLES), int(total * made / SLICE_MADE_TUPLES), least)
    fewest = SLICE_LEAST_TUPLES if fewest is None else fewest
    windows = max([span // max(window, 1), *(total // n for n in rows)])
    pieces = max(pieces, min(windows, total // fewest))
    step = max(1, total // (max(pieces, 1) * SAMPLES_PER_SLICE))
    samples = np.sort(np.concatenate([batch.ts[step::step] for batch in batches.values()]))
    cuts = [*dict.fromkeys(samples[SAMPLES_PER_SLICE - 1 :: SAMPLES_PER_SLICE].tolist()), cut]
    begin = dict.fromkeys(batches, 0)
    for at in cuts:
        piece: dict[str, Batch] = {}
        for name, batch in batches.items():
            stop = len(batch) if at == cut else int(np.searchsorted(batch.ts, at, side="left"))
            if stop > begin[name]:
                piece[name] = batch.slice(begin[name], stop)
                begin[name] = stop
        yield piece, at
