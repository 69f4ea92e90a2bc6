"""Set difference: computes which instants of a row's lifetime matches cover, and which rows wait for a match to end.

`operators.difference` calls these functions. Instants are whole numbers and lifetimes are closed intervals of them, so
an interval that starts at `last + 1` follows without a gap. A chain is a list of the rows that wait for one match.
Rings hold the chain's first row per match, and both neighbours per waiting row, each as the row plus one, 0 for none.
So removing a row from the middle of a chain takes O(1).
"""

from __future__ import annotations

import numpy as np

from schemas.columns import I64, Mask
from schemas.compiled import compiled


@compiled
def uncovered_runs(
    given: I64,
    present: Mask,
    offsets: I64,
    first: I64,
    last: I64,
    from_ts: int,
    to_ts: int,
    covered_to: I64,
    match_offsets: I64,
    match_first: I64,
    match_last: I64,
) -> tuple[I64, I64, I64]:
    """Find the runs of instants at which a row is in the left set and none of its matches is alive.

    Args:
        given: (n,) per row the index of its left runs in `offsets`, or -1: then the row is in the left set from
            `from_ts` to `to_ts` if `present`, else at no instant.
        present: (n,) see `given`.
        offsets, first, last: left runs, ascending, within from_ts .. to_ts.
        from_ts, to_ts: the first and the last instant considered.
        covered_to: (n,) the last instant covered by matches from before `from_ts`; an earlier instant if there is none.
        match_offsets, match_first, match_last: further matches per row in their total order; they are later than those
            before, so both ends ascend. A match whose last instant lies before its first is alive at no instant.

    Returns:
        (n + 1,) offsets, and first and last instants of runs, ascending. A run may start directly after the run before
        it, at a match that is alive at no instant. Cost: O(runs + matches).
    """
    n = given.shape[0]
    room = n + first.shape[0] + match_first.shape[0]
    out_offsets = np.zeros(n + 1, np.int64)
    out_first = np.empty(room, np.int64)
    out_last = np.empty(room, np.int64)
    count = 0
    for k in range(n):
        at_run, end_run = 0, 0
        if given[k] >= 0:
            at_run, end_run = offsets[given[k]], offsets[given[k] + 1]
        elif present[k]:
            at_run, end_run = -1, 0
        covered = covered_to[k]
        m = match_offsets[k]
        end_m = match_offsets[k + 1]
        while at_run < end_run:
            at, stop = from_ts, to_ts
            if at_run >= 0:
                at, stop = first[at_run], last[at_run]
            at_run += 1
            while at <= stop:
                while m < end_m and match_first[m] <= at:
                    covered = match_last[m]
                    m += 1
                if covered >= at:
                    at = covered + 1
                    continue
                until = stop
                if m < end_m:
                    until = min(stop, match_first[m] - 1)
                out_first[count] = at
                out_last[count] = until
                count += 1
                at = until + 1
        out_offsets[k + 1] = count
    return out_offsets, out_first[:count], out_last[:count]


@compiled
def run_edges(
    rows: I64, before: Mask, offsets: I64, first: I64, last: I64, from_ts: int, to_ts: int
) -> tuple[I64, I64, Mask]:
    """Find the changes at the edges of runs.

    Args:
        rows: (n,) rows.
        before: (n,) True where the row was present at from_ts - 1.
        offsets, first, last: (n + 1,) offsets, and first and last instants of the rows' runs within from_ts .. to_ts.
        from_ts, to_ts: the first and the last instant considered.

    Returns:
        Per change its row, its instant, and True where the row appears, False where it disappears; in no defined order.
        A run that lasts to `to_ts` has not ended.
    """
    room = rows.shape[0] + 2 * first.shape[0]
    out_rows = np.empty(room, np.int64)
    out_ts = np.empty(room, np.int64)
    out_comes = np.empty(room, np.bool_)
    count = 0
    for k in range(rows.shape[0]):
        there = before[k]
        ended = from_ts
        for j in range(offsets[k], offsets[k + 1]):
            if there and first[j] > ended:
                out_rows[count], out_ts[count], out_comes[count] = rows[k], ended, False
                count += 1
                there = False
            if not there:
                out_rows[count], out_ts[count], out_comes[count] = rows[k], first[j], True
                count += 1
                there = True
            ended = last[j] + 1
        if there and ended <= to_ts:
            out_rows[count], out_ts[count], out_comes[count] = rows[k], ended, False
            count += 1
    return out_rows[:count], out_ts[:count], out_comes[:count]


@compiled
def take_chains(heads: I64, following: I64, lo: int, hi: int) -> I64:
    """Empty the chains of matches lo .. hi - 1, and return the rows that waited in them. Cost: O(hi - lo + rows)."""
    head_mask = heads.shape[0] - 1
    row_mask = following.shape[0] - 1
    count = 0
    for match in range(lo, hi):
        link = heads[match & head_mask]
        while link != 0:
            count += 1
            link = following[(link - 1) & row_mask]
    out = np.empty(count, np.int64)
    count = 0
    for match in range(lo, hi):
        link = heads[match & head_mask]
        while link != 0:
            out[count] = link - 1
            count += 1
            link = following[(link - 1) & row_mask]
        heads[match & head_mask] = 0
    return out


@compiled
def move_in_chains(
    rows: I64, matches: I64, waits_for: I64, heads: I64, following: I64, preceding: I64, taken: int
) -> None:
    """Move rows into the chains of other matches; no row waits for a match below `taken` any more.

    Args:
        rows, matches: (n,) each row once, and the match that it shall wait for.
        waits_for: ring by row of the match that the row waits for, changed; less than `taken` if it is in no chain.
        heads, following, preceding: the chains, changed.
    """
    head_mask = heads.shape[0] - 1
    row_mask = following.shape[0] - 1
    for k in range(rows.shape[0]):
        slot = rows[k] & row_mask
        old, new = waits_for[slot], matches[k]
        if old == new:
            continue
        if old >= taken:
            after, ahead = following[slot], preceding[slot]
            if ahead == 0:
                heads[old & head_mask] = after
            else:
                following[(ahead - 1) & row_mask] = after
            if after != 0:
                preceding[(after - 1) & row_mask] = ahead
        waits_for[slot] = new
        if new >= taken:
            after = heads[new & head_mask]
            following[slot] = after
            preceding[slot] = 0
            heads[new & head_mask] = rows[k] + 1
            if after != 0:
                preceding[(after - 1) & row_mask] = rows[k] + 1
