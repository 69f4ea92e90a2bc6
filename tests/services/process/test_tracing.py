"""The spans of epochs, as a collector receives them; and what happens without one, or without the packages."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from services.broker.background import free_port
from services.process import tracing
from services.process.tracing import EpochTrace, open_traces
from tests.broker_fixture import wait_until
from tests.services.collector import Collector

CUT = 1_700_000_000_000

WITHOUT = """
import sys
import services.worker.worker
from services.process.tracing import open_traces
traces = open_traces("q")
traces.of(0).epoch_ended(1)
traces.close()
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as listening:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", listening.address)
        yield listening


def run_epoch(trace: EpochTrace, tuples: int, results: int) -> None:
    """An epoch with each phase, and two batches of input."""
    for part in (tuples // 2, tuples - tuples // 2):
        trace.decoded(time.monotonic(), part)
    trace.joined(time.monotonic())
    trace.delivered(time.monotonic(), results, True)
    trace.epoch_ended(CUT)


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_epoch_is_a_span_with_its_phases(collector: Collector) -> None:
    before = time.time_ns()
    traces = open_traces("q")
    trace = traces.of(3)
    run_epoch(trace, 5, 2)
    trace.epoch_ended(CUT)  # nothing read, nothing delivered
    run_epoch(trace, 8, 0)
    traces.close()
    first, second = collector.epochs().values()
    assert first.attributes == {
        "weir.query": "q",
        "weir.task": 3,
        "weir.cut_ms": CUT,
        "weir.input_tuples": 5,
        "weir.results": 2,
        "weir.committed": True,
    }
    assert (second.attributes["weir.input_tuples"], second.attributes["weir.results"]) == (8, 0)
    assert first.trace != second.trace
    assert before - 1_000_000_000 < first.began <= first.ended <= second.began <= second.ended < time.time_ns() + 10**9
    assert first.service["service.name"] == "weir"
    for epoch in (first, second):
        assert (epoch.parent, epoch.problem) == (b"", "")
        phases = collector.phases(epoch)
        assert phases.keys() == {"receive", "decode", "join", "commit"}
        assert {span.trace for span in phases.values()} == {epoch.trace}
        assert all(epoch.began <= span.began <= span.ended <= epoch.ended for span in phases.values())
        assert phases["receive"].began == epoch.began
        assert phases["receive"].ended == phases["join"].began
        assert phases["decode"].ended <= phases["join"].began <= phases["join"].ended <= phases["commit"].began
        assert phases["decode"].attributes["weir.busy_ms"] * 1e6 <= epoch.ended - epoch.began
    assert len(collector.spans) == 10


def test_what_was_not_there_has_no_span(collector: Collector) -> None:
    traces = open_traces("q")
    trace = traces.of(0)
    trace.joined(time.monotonic())
    trace.epoch_ended(CUT)
    trace.decoded(time.monotonic(), 1)
    trace.epoch_ended(CUT)
    trace.delivered(time.monotonic(), 0, False)
    trace.epoch_ended(CUT)
    traces.close()
    read, delivered = collector.epochs().values()
    assert collector.phases(read).keys() == {"receive", "decode"}
    assert collector.phases(delivered).keys() == {"receive", "commit"}
    assert [epoch.attributes["weir.committed"] for epoch in (read, delivered)] == [False, False]


def test_an_epoch_that_fails_says_why(collector: Collector) -> None:
    traces = open_traces("q")
    trace = traces.of(0)
    run_epoch(trace, 1, 1)
    trace.failed(CUT, "reading", ValueError("between two epochs"))
    trace.joined(time.monotonic())
    trace.failed(CUT, "delivering to Kafka", ValueError("no room"))
    traces.close()
    _, failed = collector.epochs().values()
    assert failed.problem == "delivering to Kafka: ValueError: no room"
    assert failed.attributes["weir.committed"] is False
    assert collector.phases(failed).keys() == {"receive", "join"}


def test_the_sdk_minds_its_variables(monkeypatch: pytest.MonkeyPatch, collector: Collector) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.address}/v1/traces")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "alarms")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=kilns")
    traces = open_traces("q")
    run_epoch(traces.of(0), 1, 1)
    traces.close()
    service = collector.spans[0].service
    assert (service["service.name"], service["service.namespace"]) == ("alarms", "kilns")
    collector.spans.clear()
    for name, value in (("OTEL_TRACES_SAMPLER", "always_off"), ("OTEL_SDK_DISABLED", "true")):
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            traces = open_traces("q")
            run_epoch(traces.of(0), 1, 1)
            traces.close()
    assert collector.spans == []


def test_a_collector_that_is_away_costs_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    monkeypatch.setattr(tracing, "FLUSH_S", 0.2)
    traces = open_traces("q")
    run_epoch(traces.of(0), 1, 1)
    wait_until(lambda: bool(complaints(caplog)), "a line about it")
    logging.getLogger("opentelemetry.sdk").error("another one")
    traces.close()
    assert complaints(caplog) == ["trouble with traces"]


def test_a_collector_that_does_not_answer_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "20")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5")
        monkeypatch.setattr(tracing, "FLUSH_S", 0.2)
        traces = open_traces("q")
        trace = traces.of(0)
        began = time.monotonic()
        for _ in range(100):
            run_epoch(trace, 1, 1)
        traces.close()
        assert time.monotonic() - began < 5, "the exporter gives up after 10 s"
    assert len(complaints(caplog)) <= 1


def test_a_missing_package_is_named_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    traces = open_traces("q")
    run_epoch(traces.of(0), 1, 1)
    traces.close()
    assert complaints(caplog) == [
        "no traces, though OTEL_EXPORTER_OTLP_ENDPOINT is set: run pip install 'weir-streams[otel]'"
    ]


def test_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "0")
    open_traces("q").close()
    assert complaints(caplog) == ["no traces: a variable of OpenTelemetry has a wrong value"]


def test_without_a_collector_nothing_is_imported() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}
    done = subprocess.run([sys.executable, "-c", WITHOUT], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
