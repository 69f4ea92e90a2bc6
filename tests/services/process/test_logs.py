"""Log lines: one per event, in either form."""

from __future__ import annotations

import json
import logging

import pytest
from aiokafka.errors import KafkaConnectionError

from services.process.logs import REPEAT_S, LineFormatter, RateLimit


def record(message: str, **fields: object) -> logging.LogRecord:
    """A record as `Log` makes it."""
    made = logging.LogRecord("weir.task", logging.WARNING, "", 0, "%s", (message,), None)
    made.created, made.msecs = 1_700_000_000.25, 250.0
    made.fields = fields
    return made


def test_json() -> None:
    line = LineFormatter(as_json=True).format(record("two\nlines", task=3, reason='a "b"', seconds=1 / 3))
    assert "\n" not in line
    assert json.loads(line) == {
        "ts": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "logger": "weir.task",
        "message": "two\nlines",
        "task": 3,
        "reason": 'a "b"',
        "seconds": 0.333333,
    }


def test_text() -> None:
    line = LineFormatter(as_json=False).format(record("two\nlines", task=3, reason='a "b"', empty=""))
    assert line == '2023-11-14T22:13:20.250Z warning weir.task: two\\nlines task=3 reason="a \\"b\\"" empty=""'


def of_a_library(name: str, message: str, *args: object, at: float = 0.0, error: bool = False) -> logging.LogRecord:
    """A record as a library makes it."""
    trace = (OSError, OSError("no room"), None) if error else None
    made = logging.LogRecord(name, logging.ERROR, "", 0, message, args, trace)
    made.created = 1_700_000_000.0 + at
    return made


def lines(*records: logging.LogRecord) -> list[str]:
    """What is written of them, without times."""
    rate_limit, form = RateLimit(), LineFormatter(as_json=False)
    return [form.format(record).partition(" ")[2] for record in records if rate_limit.filter(record)]


# As aiokafka 0.14 and mode 0.7 write them while a broker is away.
AWAY = "KafkaConnectionError: Connection at a:1 closed"
COORDINATOR = "aiokafka.consumer.group_coordinator"
BURST = (
    ("aiokafka.consumer.fetcher", "Failed fetch messages from %s: %s", 1, AWAY),
    ("aiokafka", "Unable connect to node with id %s: %s", 1, "[Errno 111] Connect call failed ('127.0.0.1', 1)"),
    ("aiokafka", "Unable to update metadata from %s", [1]),
    (COORDINATOR, "Error sending %s to node %s [%s] -- marking coordinator dead", "Heartbeat", 1, "x"),
    (COORDINATOR, "Marking the coordinator dead (node %s)for group %s.", 1, "g"),
    (COORDINATOR, "Heartbeat send request failed: %s. Will retry.", "NodeNotReadyError"),
    (COORDINATOR, "Group Coordinator Request failed: %s", "NodeNotReadyError"),
    (COORDINATOR, "Heartbeat session expired - marking coordinator dead"),
)


def test_a_clock_that_is_set_back_hides_no_line() -> None:
    """What libraries said was not written until the clock had come that far again."""
    assert len(lines(*(of_a_library("kafka", "no room", at=at) for at in (0.0, -1.0, -3_600.0, -3_599.0)))) == 2


def test_what_libraries_say_of_a_broker_that_is_away_is_two_lines_a_minute() -> None:
    """It was a burst of eight, in words for who knows their insides."""
    burst = [of_a_library(*given, at=at) for at in (0.0, 1.0, REPEAT_S / 2) for given in BURST]
    assert lines(*burst) == [
        "warning weir.kafka: a connection to a Kafka broker is lost, retrying "
        'reason="Failed fetch messages from 1: KafkaConnectionError: Connection at a:1 closed"',
        "warning weir.kafka: the coordinator of the consumer group does not answer, retrying; tasks may move to other "
        'workers meanwhile reason="Error sending Heartbeat to node 1 [x] -- marking coordinator dead"',
    ]
    assert len(lines(burst[0], of_a_library(*BURST[1], at=REPEAT_S))) == 2


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            ("faust.app.base", "Warning: Task timed out!"),
            "warning weir.kafka: the consumer group takes long to hand tasks over; if that repeats, raise "
            '--session-timeout reason="Warning: Task timed out!"',
        ),
        (
            ("aiokafka", "Unable connect to node with id %s: %s", 1, "AuthenticationFailedError: no"),
            "warning weir.kafka: Kafka refuses the consumer: check --security-protocol, user name, password, "
            'certificates and rights reason="Unable connect to node with id 1: AuthenticationFailedError: no"',
        ),
        (
            (COORDINATOR, "Heartbeat failed for group %s: generation id is not  current.", "g"),
            "warning weir.kafka: the consumer group has gone on without this worker, joining it again; if that "
            'repeats, raise --session-timeout reason="Heartbeat failed for group g: generation id is not  current."',
        ),
        (("aiokafka", "something new about %s", 7), "error   aiokafka: something new about 7"),
    ],
)
def test_lines_of_libraries(given: tuple[str, ...], line: str) -> None:
    assert lines(of_a_library(*given)) == [line]


def test_what_follows_such_a_line_or_is_said_elsewhere_is_not_written() -> None:
    hint = of_a_library("faust.app.base", "Please make sure it's hanging before restart.")
    assert lines(hint, of_a_library("faust.app.base", "Crashed reason=%r", "x", error=True)) == []


def test_that_workers_come_and_go_is_not_worth_a_line() -> None:
    """It was called a coordinator that does not answer, at every start of a second worker."""
    assert lines(of_a_library(COORDINATOR, "Heartbeat failed for group %s because it is rebalancing", "g")) == []


@pytest.mark.parametrize("error", [ConnectionResetError(104, "Connection reset by peer"), KafkaConnectionError("x")])
def test_a_request_that_nobody_waits_for_is_a_lost_connection(error: Exception) -> None:
    """asyncio wrote a traceback when a broker died while a request had been given up."""
    record = of_a_library("asyncio", f"Future exception was never retrieved\nfuture: <Future exception={error!r}>")
    record.exc_info = (type(error), error, None)
    (line,) = lines(record)
    assert line.startswith("warning weir.kafka: a connection to a Kafka broker is lost, retrying reason=")
    assert "traceback" not in line


def test_an_unexpected_error_keeps_its_own_words() -> None:
    """Whatever the words are: here those of a coordinator, and a request whose failure is another."""
    (line,) = lines(of_a_library("asyncio", "Task exception was never retrieved", error=True))
    assert line.startswith("error   asyncio: Task exception was never retrieved error=")
    (line,) = lines(of_a_library("aiokafka", "Unexpected error in coordinator routine", error=True))
    assert line.startswith("error   aiokafka: Unexpected error in coordinator routine error=")
    assert "no room" in line
