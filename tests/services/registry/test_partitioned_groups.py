"""Which groups have a task per partition, and which queries they take."""

from __future__ import annotations

import pytest

from schemas.errors import UsageError
from schemas.language.program import parse_program
from schemas.messages.control import RegisteredGroup
from services.placement.tasks import lay_out
from services.registry.group_registration import check_partitions
from services.registry.group_registry import GroupEntry, partition_columns

STREAMS = """
CREATE STREAM a (k BIGINT, s STRING, at TIMESTAMP) WITH (topic = 'ta', format = 'json', timestamp = 'at');
CREATE STREAM b (k BIGINT, s STRING, at TIMESTAMP) WITH (topic = 'tb', format = 'json', timestamp = 'at');
CREATE STREAM c (k BIGINT, s STRING, at TIMESTAMP) WITH (topic = 'ta', format = 'json', timestamp = 'at');
CREATE TABLE names (k BIGINT, name STRING) WITH (path = 'names.csv', format = 'csv');
"""
AB = "INSERT INTO 'q1' SELECT A.k FROM a A [RANGE 1 SECOND], b B [RANGE 1 SECOND] WHERE A.{0} = B.{0} "
BY_K, BY_S = (AB.format(name) + f"PARTITION BY A.{name}, B.{name};" for name in "ks")
UNSPLIT = AB.format("k") + ";"
BC = "INSERT INTO 'q2' SELECT C.k FROM c C [RANGE 1 SECOND], b B [RANGE 1 SECOND], names N WHERE C.{0} = B.{0} "
BC_BY_K, BC_BY_S = ((BC + "AND N.k = B.k PARTITION BY C.{0}, B.{0};").format(name) for name in "ks")


def text(*selects: str) -> str:
    return STREAMS + "\n".join(selects)


@pytest.mark.parametrize(
    ("selects", "columns"),
    [
        ([BY_K], {"a": "k", "b": "k"}),
        ([BY_S], {"a": "s", "b": "s"}),
        ([BY_K, BC_BY_K], {"a": "k", "b": "k", "c": "k"}),
        ([BY_K, BC_BY_S], {}),  # one topic has one key
        ([UNSPLIT], {}),
        ([UNSPLIT, BC_BY_K], {}),
    ],
)
def test_a_group_is_split_if_its_queries_agree(selects: list[str], columns: dict[str, str]) -> None:
    found = partition_columns(parse_program(text(*selects)).queries)
    assert {stream: column.name for stream, column in found.items()} == columns
    declared = RegisteredGroup(name="g", text=text(*selects), streams=tuple(columns) or ("a", "b"), partitioned=True)
    layout = lay_out(GroupEntry(declared, {}).query(), {"ta": 3, "tb": 3})
    assert layout.tasks == (3 if columns else 1)


def test_a_group_that_was_registered_before_is_one_task() -> None:
    declared = RegisteredGroup(name="g", text=text(BY_K), streams=("a", "b"))
    assert GroupEntry(declared, {}).query().partition_by == ()


@pytest.mark.parametrize("wrong", [BY_S, UNSPLIT])
def test_a_query_that_does_not_agree_is_refused(wrong: str) -> None:
    split = partition_columns(parse_program(text(BY_K)).queries)
    (query,) = parse_program(text(wrong)).queries
    with pytest.raises(UsageError, match="group 'g' has a task per partition, by column k of"):
        check_partitions("g", split, [query])
    check_partitions("g", {}, [query])
    check_partitions("g", split, parse_program(text(BY_K)).queries)
