"""The state of a join side against a plain list: probes, scans, wrapping, stale heads, purging, compaction.

Entries are written `ts:key`; a state of capacity 4 is tiny enough to wrap, grow and compact all the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.data.tuples import FOREVER, Tuples
from operators.data.watermark import END
from operators.kernels.hashing import U64
from operators.kernels.index import PROBES_AHEAD
from operators.kernels.scan import OPS
from operators.state import side_state as state
from operators.state.side_state import PARTITION_GROUPS, ProbeTerms, Scratch, SideState
from schemas.columns import I64
from tests.profiles import PROPERTY


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "FIRST_CAPACITY", 4)


def single(ts: list[int], life: int = 10, first_row: int = 0) -> Tuples:
    """Source tuples with consecutive rows."""
    times = np.array(ts, np.int64)
    rows = np.arange(first_row, first_row + len(ts), dtype=np.int64)
    return Tuples(("A",), rows[np.newaxis], times, np.minimum(times + life, FOREVER))


def words(keys: list[int]) -> U64:
    return np.array(keys, np.uint64)


def scratch(room: int) -> Scratch:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "CANDIDATES_AT_ONCE", room)
        return Scratch()


def probed(
    side: SideState, keys: list[int], ts: list[int], *, strict: bool = False, room: int = 1000
) -> list[tuple[int, int]]:
    """All pairs (probe row, entry), in rounds of at most `room`."""
    some = scratch(room)
    found: list[tuple[int, int]] = []
    start, resume = 0, -1
    while start < len(keys):
        count, start, resume, _ = side.probe(
            words(keys), np.array(ts, np.int64), strict=strict, start=start, resume=resume, scratch=some
        )
        assert 0 <= count <= room
        found += zip(some.probe_idx[:count].tolist(), some.entries[:count].tolist(), strict=True)
    return found


def hashed(life: int = 10) -> SideState:
    return SideState(("A",), life, hashed=True, exact_expiry=True)


# --- By eye ------------------------------------------------------------------------------------------


def test_pairs_ascend_by_probe_row_newest_entry_first() -> None:
    """1:7 2:8 3:7; keys 7, 8, 9 probe at 5."""
    side = hashed()
    side.insert(single([1, 2, 3]), words([7, 8, 7]))
    assert probed(side, [7, 8, 9], [5, 5, 5]) == [(0, 2), (0, 0), (1, 1)]


def test_keys_that_earlier_entries_have() -> None:
    """Entries ts:key 1:7 2:8 3:7 4:9, and 2:11 in `older`; keys 7 and 11 share a bucket."""
    side = hashed()
    side.insert(single([1, 2, 3, 4]), words([7, 8, 7, 9]))
    side.older = hashed()
    side.older.insert(single([2]), words([11]))
    asked = words([7, 8, 9, 10, 11])
    assert side.has(asked, 5).tolist() == [True, True, True, False, True]
    assert side.has(asked, 4).tolist() == [True, True, False, False, True]
    assert side.has(asked, 2).tolist() == [True, False, False, False, False], "the first 7, behind the other"
    assert side.has(asked, 1).tolist() == [False] * 5
    side.purge(13)
    assert side.has(words([7, 8]), 5).tolist() == [True, False], "3:7"
    side.insert(single([20, 21, 22]), words([3, 3, 15]))
    assert side.has(words([7, 3, 15]), FOREVER).tolist() == [True, True, True]


def test_tuples_are_in_the_order_of_their_arrival() -> None:
    """Rows 0 to 4 with ts 1 2 2 2 3; the first two of ts 2 entered late, the second one first. A copied state lost
    row 1 when row 0 left its ROWS window: they are found by a binary search."""
    side = hashed(FOREVER)
    arrived = single([1, 2, 2, 2, 3], FOREVER)
    side.insert(arrived.take(np.array([0, 3, 4])), words([7, 7, 7]))
    side.older = hashed(FOREVER)
    side.older.insert(arrived.take(np.array([2, 1])), words([7, 7]))
    found = side.tuples()
    assert found.rows[0].tolist() == [0, 1, 2, 3, 4]
    copy = hashed(FOREVER)
    copy.insert(found, words([7] * 5))
    copy.purge_rows("A", 1)
    assert copy.tuples().rows[0].tolist() == [1, 2, 3, 4]


def test_only_earlier_entries_are_met() -> None:
    """Equal ts counts for one side (not strict) and not for the other."""
    side = hashed()
    side.insert(single([4, 5, 6]), words([7, 7, 7]))
    assert probed(side, [7, 7], [5, 6]) == [(0, 1), (0, 0), (1, 2), (1, 1), (1, 0)]
    assert probed(side, [7, 7], [5, 6], strict=True) == [(0, 0), (1, 1), (1, 0)]
    assert probed(side, [7], [3]) == []


def test_the_end_of_a_lifetime_is_inclusive() -> None:
    """An entry at 1 with lifetime 10 is met at 11, not at 12; entry 2:7 hides no entry behind it."""
    side = hashed()
    side.insert(single([1, 2]), words([7, 7]))
    assert probed(side, [7, 7, 7], [11, 12, 13]) == [(0, 1), (0, 0), (1, 1)]


def test_stored_expiry_decides_before_lifetime() -> None:
    """An intermediate result may die long before its newest component expires; older ones may outlive it."""
    side = SideState(("A", "B"), 10, hashed=True)
    side.insert(
        Tuples(("A", "B"), np.arange(6).reshape(2, 3), np.array([1, 2, 3]), np.array([11, 5, 9])),
        words([7] * 3),
    )
    assert probed(side, [7, 7, 7], [5, 6, 10]) == [(0, 2), (0, 1), (0, 0), (1, 2), (1, 0), (2, 0)]


@pytest.mark.parametrize("room", [1, 2, 3, 5])
def test_a_full_output_is_resumed_where_it_stopped(room: int) -> None:
    """No pair is lost or repeated, none is counted twice as compared."""
    side = hashed()
    side.insert(single([1, 2, 3, 4]), words([7, 8, 7, 7]))
    keys, ts = [7, 8, 7, 9, 7], [4, 4, 5, 5, 6]
    whole = probed(side, keys, ts)
    assert probed(side, keys, ts, room=room) == whole
    assert len(whole) == 10

    def compared(room: int) -> int:
        some, start, resume, total = scratch(room), 0, -1, 0
        while start < len(keys):
            _, start, resume, count = side.probe(
                words(keys), np.array(ts, np.int64), strict=False, start=start, resume=resume, scratch=some
            )
            total += count
        return total

    assert compared(room) == compared(1000)


def test_more_probes_than_are_looked_up_ahead() -> None:
    """Blocks of probe rows join without a seam, resumed within and between."""
    n = 2 * PROBES_AHEAD + 37
    side = hashed(life=10_000)
    side.insert(single(list(range(n))), words([i % 5 for i in range(n)]))
    keys, ts = [i % 7 for i in range(n)], list(range(n))
    expected = [(i, e) for i in range(n) for e in range(i, -1, -1) if e % 5 == keys[i]]
    for room in (1_000_000, 10_007, 333):
        assert probed(side, keys, ts, room=room) == expected


def test_wrapping_leaves_no_stale_entry() -> None:
    """Capacity 4, entries added and purged: heads of purged entries refer to slots that other entries have taken."""
    side = hashed(life=2)
    for t in range(0, 100, 1):
        side.purge(t)
        side.insert(single([t], 2, t), words([t % 3]))
        assert side.capacity == 4
        met = [(0, e) for e in range(t, max(t - 3, -1), -1) if e % 3 == t % 3]
        assert probed(side, [t % 3], [t]) == met
        assert probed(side, [5], [t]) == [], "bucket 1 of 4, where only other keys are"


def test_a_key_that_most_entries_have_costs_the_others_nothing() -> None:
    """Heads of buckets whose entries had been purged named slots that entries of the key had reused. A probe by any
    such bucket walked through all of these: a state of n entries cost n comparisons per tuple."""
    rng, side, some, compared = Random(1), hashed(life=200), scratch(1000), 0
    for ts in range(4_000):
        side.insert(single([ts], life=200, first_row=ts), words([rng.choice([0, rng.getrandbits(64)])]))
        side.purge(ts)
        *_, looked = side.probe(
            words([rng.getrandbits(64)]), np.array([ts]), strict=False, start=0, resume=-1, scratch=some
        )
        compared += looked
    assert compared < 2 * 4_000


def test_growth_keeps_all_entries() -> None:
    """Doubling as often as necessary at once."""
    side = hashed(life=FOREVER)
    side.insert(single([1, 2, 3], FOREVER), words([1, 2, 1]))
    side.insert(single(list(range(4, 40)), FOREVER, 3), words([1, 2] * 18))
    assert side.capacity == 64
    assert [e for _, e in probed(side, [1], [50])] == [*range(37, 2, -2), 2, 0]
    assert side.tuples().rows[0].tolist() == list(range(39))


def test_the_dead_make_room_for_intermediate_results() -> None:
    """A full ring of intermediate results is compacted when enough are dead, else grown."""
    side = SideState(("A", "B"), 100, hashed=True)

    def put(ts: list[int], expiry: list[int], now: int) -> None:
        rows = np.array([ts, ts], np.int64)
        tuples = Tuples(("A", "B"), rows, np.array(ts, np.int64), np.array(expiry, np.int64))
        side.insert(tuples, words([7] * len(ts)), now=now)

    put([1, 2, 3, 4], [2, 50, 2, 50], now=1)
    capacity = side.capacity
    put([5], [50], now=5)
    assert side.capacity == capacity
    assert side.tuples().ts.tolist() == [2, 4, 5]
    assert [side.ts[e & (side.capacity - 1)] for _, e in probed(side, [7], [6])] == [5, 4, 2]
    put([6, 7, 8], [50] * 3, now=6)
    assert side.capacity > capacity, "nothing is dead: it grows"
    assert side.tuples().ts.tolist() == [2, 4, 5, 6, 7, 8]


def test_now_is_still_alive_when_room_is_made() -> None:
    """Expiry at `now` is not dead yet."""
    side = SideState(("A", "B"), 100, hashed=False)
    tuples = Tuples(("A", "B"), np.zeros((2, 4), np.int64), np.arange(4), np.array([3, 4, 5, 6]))
    side.insert(tuples, None)
    side.insert(tuples.take(np.array([3])), None, now=4)
    assert side.tuples().expiry.tolist() == [4, 5, 6, 6]


def test_purge_by_watermark() -> None:
    """An entry is dropped when no tuple with ts >= cut can meet it; at the end all are dropped."""
    side = hashed(life=10)
    side.insert(single([1, 2, 2, 5]), words([7] * 4))
    side.purge(11)
    assert (side.lo, len(side)) == (0, 4)
    side.purge(12)
    assert (side.lo, len(side)) == (1, 3)
    side.purge(13)
    assert len(side) == 1
    side.purge(END)
    assert len(side) == 0
    endless = hashed(life=FOREVER)
    endless.insert(single([1], FOREVER), words([7]))
    endless.purge(2**61)
    assert len(endless) == 1
    endless.purge(END)
    assert len(endless) == 0


def test_purge_by_rows() -> None:
    """A single input drops the rows before the first that is alive; results of several wait for room."""
    side = SideState(("A",), FOREVER, hashed=True)
    side.insert(single([1, 2, 3], FOREVER, first_row=10), words([7] * 3))
    side.purge_rows("A", 12)
    assert side.tuples().rows[0].tolist() == [12]
    pairs = SideState(("A", "B"), FOREVER, hashed=True)
    rows = np.array([[10, 11, 12, 13], [23, 22, 21, 20]])
    pairs.insert(
        Tuples(("A", "B"), rows, np.arange(4), np.full(4, FOREVER)),
        words([7] * 4),
    )
    pairs.purge_rows("A", 11)
    pairs.purge_rows("B", 21)
    assert len(pairs) == 4
    pairs.insert(Tuples(("A", "B"), np.array([[14], [24]]), np.array([9]), np.array([FOREVER])), words([7]))
    assert pairs.tuples().rows.tolist() == [[11, 12, 14], [22, 21, 24]]


def test_keep() -> None:
    """Compaction to a mask: the index follows."""
    side = hashed()
    side.insert(single([1, 2, 3]), words([7, 8, 7]))
    side.keep(np.array([True, False, True]))
    assert side.tuples().ts.tolist() == [1, 3]
    assert [e for _, e in probed(side, [7, 8], [5, 5])] == [1, 0]


def test_gather_and_tuples() -> None:
    """Rows and expiry, kept or derived."""
    side = hashed(life=10)
    side.insert(single([1, 2, 3], first_row=5), words([7, 8, 7]))
    rows, expiry = side.gather(np.array([2, 0]))
    assert (rows.tolist(), expiry.tolist()) == ([[7, 5]], [13, 11])
    endless = hashed(life=FOREVER)
    endless.insert(single([1], FOREVER), words([7]))
    assert endless.tuples().expiry.tolist() == [FOREVER]


def test_combine() -> None:
    """Probing tuples with entries: rows on either side, the later ts, the earlier death."""
    side = hashed(life=10)
    side.insert(single([1, 2], first_row=5), words([7, 7]))
    probe = Tuples(("B", "C"), np.array([[40, 41], [50, 51]]), np.array([3, 4]), np.array([8, 30]))
    rows, ts, expiry = side.combine(probe, np.array([0, 1]), np.array([1, 0]), probe_first=True)
    assert rows.tolist() == [[40, 41], [50, 51], [6, 5]]
    assert (ts.tolist(), expiry.tolist()) == ([3, 4], [8, 11])
    rows, _, _ = side.combine(probe, np.array([0, 1]), np.array([1, 0]), probe_first=False)
    assert rows.tolist() == [[6, 5], [40, 41], [50, 51]]
    endless = hashed(life=FOREVER)
    endless.insert(single([1], FOREVER), words([7]))
    forever = Tuples(("B",), np.array([[0]]), np.array([3]), np.array([FOREVER]))
    assert endless.combine(forever, np.array([0]), np.array([0]), probe_first=True)[2].tolist() == [FOREVER]
    kept = SideState(("A", "D"), 10, hashed=False)
    kept.insert(Tuples(("A", "D"), np.array([[1], [2]]), np.array([2]), np.array([6])), None)
    assert kept.combine(probe, np.array([1]), np.array([0]), probe_first=True)[2].tolist() == [6]


def test_group_sizes_sum_to_the_entries() -> None:
    """By the top bits of the hash."""
    side = hashed()
    assert side.group_sizes().sum() == 0
    keys = [1, 2**58, 2**58 + 9, 2**63, 2**64 - 1]
    side.insert(single([1, 2, 3, 4, 5]), words(keys))
    side.purge(12)
    sizes = side.group_sizes()
    assert len(sizes) == PARTITION_GROUPS
    assert sizes.sum() == len(side) == 4
    assert {i: int(n) for i, n in enumerate(sizes) if n} == {1: 2, 32: 1, 63: 1}
    loop = SideState(("A",), 10, hashed=False, exact_expiry=True)
    loop.insert(single([1, 2]), None)
    assert loop.group_sizes().tolist() == [2] + [0] * (PARTITION_GROUPS - 1)


def test_size_bytes() -> None:
    """Per slot: rows, ts, maybe expiry; key, distance and head where hashed; terms."""
    assert hashed().size_bytes() == 4 * (8 + 8 + 8 + 4 + 4)
    assert SideState(("A", "B"), 9, hashed=False).size_bytes() == 4 * (16 + 8 + 8)
    loop = SideState(("A",), 9, hashed=False, int_terms=2, float_terms=1, exact_expiry=True)
    assert loop.size_bytes() == 4 * (8 + 8 + 16 + 8)
    loop.insert(single(list(range(5)), 9), None, np.zeros((2, 5), np.int64), np.zeros((1, 5)))
    assert loop.size_bytes() == 8 * (8 + 8 + 16 + 8)


# --- Against a list ----------------------------------------------------------------------------------


@dataclass
class Model:
    """The expected content of a state, as a list of (ts, key, value, row, expiry)."""

    life: int
    entries: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def matches(self, key: int | None, ts: int, strict: bool) -> list[int]:
        """Rows of the partners, newest first; any key when None."""
        return [
            row
            for t, k, _, row, expiry in reversed(self.entries)
            if (key is None or k == key) and (t < ts or (t == ts and not strict)) and expiry >= ts
        ]


STEPS = st.lists(
    st.tuples(
        st.integers(0, 4),  # how far time advances
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=9),  # (ts step, key) to insert
        st.booleans(),  # purge?
        st.integers(1, 7),  # room
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("kept_expiry", [False, True])
@pytest.mark.parametrize("life", [0, 3, 9, FOREVER])
@PROPERTY
@given(steps=STEPS, data=st.data())
def test_probes_equal_a_list(kept_expiry: bool, life: int, steps: list, data: st.DataObject) -> None:
    """Insert, purge, probe with little room: the pairs of a list, in its order, whatever wrapped or grew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "FIRST_CAPACITY", 4)
        aliases = ("A", "B") if kept_expiry else ("A",)
        side = SideState(aliases, life, hashed=True, exact_expiry=not kept_expiry)
    model = Model(life)
    now = row = 0
    for pause, items, purges, room in steps:
        now += pause
        ts: list[int] = []
        expiry: list[int] = []
        begin = now
        for step, _ in items:
            now += step
            ts.append(now)
            shorter = data.draw(st.integers(0, 5)) if kept_expiry else 0
            expiry.append(max(now, min(now + life, FOREVER) - shorter))
        rows = np.arange(row, row + len(ts), dtype=np.int64)
        some = Tuples(
            aliases,
            np.stack([rows] * len(aliases)),
            np.array(ts, np.int64),
            np.array(expiry, np.int64),
        )
        side.insert(some, words([key for _, key in items]), now=begin)
        model.entries += [
            (t, key, 0, row + i, end) for i, (t, (_, key), end) in enumerate(zip(ts, items, expiry, strict=True))
        ]
        row += len(ts)
        for strict in (False, True):
            keys, times = [0, 1, 2, 3, 4, 5, 77] * 2, [begin] * 7 + [now + 1] * 7
            got = [
                (i, int(side.rows[0, e & (side.capacity - 1)]))
                for i, e in probed(side, keys, times, strict=strict, room=room)
            ]
            expected = [
                (i, partner)
                for i, (key, t) in enumerate(zip(keys, times, strict=True))
                for partner in model.matches(key, t, strict)
            ]
            assert got == expected
        if purges:
            side.purge(now)
            assert side.ts.size == side.capacity
            if life < FOREVER and len(side):
                assert int(side.ts[side.lo & (side.capacity - 1)]) >= now - life


def scanned(
    side: SideState, terms: ProbeTerms, ts: list[int], *, strict: bool, room: int
) -> tuple[list[tuple[int, int]], int]:
    some = scratch(room)
    found: list[tuple[int, int]] = []
    start, resume, total = 0, -1, 0
    while start < len(ts):
        count, start, resume, compared = side.scan(
            terms, np.array(ts, np.int64), strict=strict, start=start, resume=resume, scratch=some
        )
        total += compared
        found += zip(some.probe_idx[:count].tolist(), some.entries[:count].tolist(), strict=True)
    return found, total


HOLDS = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "=": lambda a, b: a == b,
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("kind", ["int", "float", "both"])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("room", [1, 3, 1000])
def test_scans_equal_a_list(op: str, kind: str, strict: bool, room: int) -> None:
    """Every pair of small values under every operator, alive or not, earlier or not."""
    random = np.random.default_rng(5)
    ints, floats = kind != "float", kind != "int"
    side = SideState(("A",), 6, hashed=False, int_terms=int(ints), float_terms=int(floats), exact_expiry=True)
    ts = sorted(random.integers(0, 30, 40).tolist())
    values = random.integers(-2, 3, 40)
    side.insert(single(ts, 6), None, values[np.newaxis][: int(ints)], values[np.newaxis][: int(floats)] / 2)
    side.purge(9)
    probe_ts = sorted(random.integers(9, 40, 25).tolist())
    probe = random.integers(-2, 3, 25)

    def codes(on: bool) -> I64:
        return np.array([OPS[op]] if on else [], np.int64)

    terms = ProbeTerms(codes(ints), probe[np.newaxis][: int(ints)], codes(floats), probe[np.newaxis][: int(floats)] / 2)
    got, compared = scanned(side, terms, probe_ts, strict=strict, room=room)
    alive = [
        (i, e)
        for i, now in enumerate(probe_ts)
        for e in range(39, -1, -1)
        if ts[e] >= 3 and now - 6 <= ts[e] and (ts[e] < now or (ts[e] == now and not strict))
    ]
    assert got == [(i, e) for i, e in alive if HOLDS[op](probe[i], values[e])]
    assert compared == len(alive)


def test_scans_heed_kept_expiry() -> None:
    """As probes do; without any term every living pair is met."""
    side = SideState(("A", "B"), 10, hashed=False)
    tuples = Tuples(("A", "B"), np.arange(6).reshape(2, 3), np.array([1, 2, 3]), np.array([11, 5, 9]))
    side.insert(tuples, None)
    none = ProbeTerms(np.zeros(0, np.int64), np.zeros((0, 3), np.int64), np.zeros(0, np.int64), np.zeros((0, 3)))
    got, _ = scanned(side, none, [5, 6, 10], strict=False, room=2)
    assert got == [(0, 2), (0, 1), (0, 0), (1, 2), (1, 0), (2, 0)]


def test_terms_are_all_of_them() -> None:
    """Two whole-number terms and a real one: a pair needs all three. NaN meets nothing."""
    side = SideState(("A",), 10, hashed=False, int_terms=2, float_terms=1, exact_expiry=True)
    side.insert(
        single([1, 1, 1, 1]),
        None,
        np.array([[1, 2, 1, 1], [5, 5, 6, 5]]),
        np.array([[0.5, 0.5, 0.5, np.nan]]),
    )
    terms = ProbeTerms(
        np.array([OPS["="], OPS[">="]]),
        np.array([[1], [5]]),
        np.array([OPS["="]]),
        np.array([[0.5]]),
    )
    assert scanned(side, terms, [2], strict=True, room=9)[0] == [(0, 0)]
