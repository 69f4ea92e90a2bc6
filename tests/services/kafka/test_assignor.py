"""The assignor: every task to one member, evenly, and where it was if it can be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.kafka.assignor import TaskAssignor, spread

HELD = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.lists(st.integers(0, 11)), min_size=1, max_size=6)


@given(st.sets(st.integers(0, 9)), HELD)
def test_each_task_goes_to_one_member_evenly(tasks: set[int], held: dict[str, list[int]]) -> None:
    given_ = spread(tasks, held)
    assert sorted(n for numbers in given_.values() for n in numbers) == sorted(tasks)
    counts = [len(numbers) for numbers in given_.values()]
    assert max(counts) - min(counts) <= 1
    assert set(given_) == set(held)


@given(st.sets(st.integers(0, 9)), HELD)
def test_it_is_stable(tasks: set[int], held: dict[str, list[int]]) -> None:
    """What was assigned is assigned again, whatever the order in which members are named."""
    first = spread(tasks, held)
    assert spread(tasks, dict(reversed(first.items()))) == first


@given(st.sets(st.integers(0, 9), min_size=1), st.integers(1, 4))
def test_a_newcomer_takes_no_more_than_its_share(tasks: set[int], count: int) -> None:
    before = spread(tasks, {f"m{i}": [] for i in range(count)})
    after = spread(tasks, {**before, "new": []})
    for member, numbers in before.items():
        assert set(after[member]) <= set(numbers)


def test_a_single_task_stays() -> None:
    assert spread([0], {"a": [], "b": [0], "c": []}) == {"a": [], "b": [0], "c": []}
    assert spread([0], {"a": [], "c": []}) == {"a": [0], "c": []}


def test_who_runs_other_tasks_gets_none() -> None:
    """A member with another layout than the leader's would run the same results a second time."""

    class Topics:
        def partitions_for_topic(self, topic: str) -> set[int]:
            return {0, 1}

    def task_of(topic: str, partition: int) -> int | None:
        return partition if topic == "known" else None

    leader, twin, odd = (TaskAssignor(task_of, lambda: [], layout) for layout in ("a", "a", "b"))
    members = {name: one.metadata(["known", "new"]) for name, one in (("l", leader), ("t", twin), ("o", odd))}
    found = leader.assign(Topics(), members)  # type: ignore[arg-type]
    shares = {name: [(tp.topic, tp.partition) for tp in one.partitions()] for name, one in found.items()}
    assert shares == {"l": [("known", 0)], "t": [("known", 1)], "o": []}


def test_members_of_other_versions_understand_what_is_sent() -> None:
    """The key for tasks is an older word, which members of a rolling upgrade read."""
    sent = TaskAssignor(lambda topic, partition: partition, lambda: [2, 0], "a").metadata(["t"])
    assert sent.user_data == b'{"v": 1, "sets": [0, 2], "layout": "a"}'
