"""Control messages: they survive a round trip, foreign messages are refused, unknown fields are ignored."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import StateError
from schemas.messages.control import (
    Answer,
    ControlMessage,
    Cut,
    Demanded,
    Done,
    Opened,
    PartitionTotals,
    Propose,
    RegisteredQuery,
    Request,
    Started,
    TaskStatistics,
    Withdraw,
    decode_control,
    encode_control,
)

TEXTS = st.text(max_size=20)
TIMES = st.integers(0, 4_102_444_799_999)
SECONDS = st.floats(0, 1e6)
MESSAGES = st.one_of(
    st.builds(Opened, task=st.integers(0, 99), incarnation=TEXTS),
    st.builds(Request, id=TEXTS, plan=TEXTS, strategy=TEXTS, fingerprint=TEXTS, asked_ms=TIMES),
    st.builds(Propose, id=TEXTS, plan=TEXTS, strategy=TEXTS, fingerprint=TEXTS, tasks=st.integers(1, 99)),
    st.builds(Answer, id=TEXTS, task=st.integers(0, 99), incarnation=TEXTS, watermark=TIMES, bound=TIMES, error=TEXTS),
    st.builds(Cut, id=TEXTS, cut=TIMES),
    st.builds(
        PartitionTotals,
        query=TEXTS,
        task=st.integers(0, 99),
        incarnation=TEXTS,
        operator=TEXTS,
        groups=st.lists(st.integers(0, 999), max_size=3),
        output=st.lists(SECONDS, max_size=3),
        inter_bytes=st.lists(SECONDS, max_size=3),
    ),
    st.builds(Withdraw, id=TEXTS, reason=TEXTS, by=TEXTS),
    st.builds(
        Started,
        id=TEXTS,
        task=st.integers(0, 99),
        version=st.integers(1, 99),
        began_at=TIMES,
        exact=st.booleans(),
        silence_s=SECONDS,
    ),
    st.builds(
        Done,
        id=TEXTS,
        task=st.integers(0, 99),
        version=st.integers(1, 99),
        first_result_ts=st.none() | TIMES,
        first_result_s=st.none() | SECONDS,
    ),
    st.builds(
        TaskStatistics,
        query=TEXTS,
        task=st.integers(0, 99),
        tasks=st.integers(1, 99),
        incarnation=TEXTS,
        sent_ms=TIMES,
        seconds=SECONDS,
        plan_version=st.integers(0, 99),
        engine=st.dictionaries(TEXTS, st.integers(0, 9)),
    ),
    st.builds(RegisteredQuery, name=TEXTS, text=TEXTS, pick=st.none() | TEXTS),
    st.builds(Demanded, topic=TEXTS, partition=st.integers(0, 99), need=TIMES, suspend=st.binary(), resume=st.binary()),
)


@given(MESSAGES)
def test_round_trip(message: ControlMessage) -> None:
    assert decode_control(encode_control(message), "c[0]@1") == message


def test_the_form_on_the_wire() -> None:
    assert json.loads(encode_control(Cut(id="a1", cut=5))) == {"type": "cut", "v": 1, "id": "a1", "cut": 5}


def test_unknown_fields_are_passed_over() -> None:
    assert decode_control(b'{"type": "cut", "v": 1, "id": "a1", "cut": 5, "mood": "good"}', "c") == Cut(id="a1", cut=5)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "c\\[0\\]@7 holds b'', which is no control message"),
        (b"hello", "no control message of Weir"),
        (b'{"type": "cut"}', "no control message of Weir"),
        (b'{"type": "cut", "v": 0, "id": "a1"}', "'cut' message c\\[0\\]@7 is damaged: it says format 0"),
        (b'{"type": "cut", "v": 1, "id": "a1"}', "damaged 'cut' message .*`cut`"),
        (b'{"type": "party", "v": 1}', "damaged 'party' message"),
    ],
)
def test_what_is_not_ours_is_refused(data: bytes | None, said: str) -> None:
    with pytest.raises(StateError, match=said):
        decode_control(data, "c[0]@7")
