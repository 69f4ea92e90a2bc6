"""Cuts an epoch into slices, the batches of tuples that the engine processes together. `Engine` calls `slices`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from schemas.columns import Batch

SLICE_TUPLES = 32_768
"""Tuples per slice: enough to amortise a call, few enough to stay in the cache."""

SLICE_MADE_TUPLES = 262_144
"""Most intermediate results per slice, if each tuple makes as many as tuples have made so far."""

SLICE_LEAST_TUPLES = 1_024
"""Smallest number of tuples per slice when a slice is cut to fit a short window."""

SAMPLES_PER_SLICE = 8
"""Timestamps sampled per slice to choose its end. With k streams a slice is at most 1 + k / 8 times too large."""


def slices(
    batches: Mapping[str, Batch],
    cut: int,
    *,
    made_per_tuple: float,
    window: int,
    rows: Iterable[int] = (),
    min_slices: int = 0,
    min_tuples: int | None = None,
) -> Iterator[tuple[dict[str, Batch], int]]:
    """Cut an epoch by event time into pieces that suit the cache and the shortest window.

    Every stream is sampled SAMPLES_PER_SLICE times as finely as slices are cut. So slices stay small where one stream
    is dense and another has nothing.

    Args:
        batches: the epoch's tuples by stream, ascending by ts, all before `cut`.
        made_per_tuple: intermediate results per tuple so far.
        window: the length of the shortest RANGE window, in ms.
        rows: the sizes of the ROWS windows, in tuples.
        min_slices: the smallest number of slices.
        min_tuples: the smallest number of tuples in a slice that is cut to fit a short window; None for
            SLICE_LEAST_TUPLES.

    Yields:
        Each slice's tuples by stream, and the event time before which the slice ends. The last slice ends at `cut`.
    """
    total = sum(len(batch) for batch in batches.values())
    if total == 0:
        yield {}, cut
        return
    span = max(int(b.ts[-1]) for b in batches.values()) - min(int(b.ts[0]) for b in batches.values())
    pieces = max(-(-total // SLICE_TUPLES), int(total * made_per_tuple / SLICE_MADE_TUPLES), min_slices)
    min_tuples = SLICE_LEAST_TUPLES if min_tuples is None else min_tuples
    windows = max([span // max(window, 1), *(total // n for n in rows)])
    pieces = max(pieces, min(windows, total // min_tuples))
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
