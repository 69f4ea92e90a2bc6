"""Traces of the epochs of a worker's tasks, for OpenTelemetry: one span per epoch, with a child span per phase.

    traces = open_traces("alarms")
    trace = traces.of(0)
    trace.decoded(began, tuples)    # and so on; see `EpochTrace`
    trace.epoch_ended(cut)
    traces.close()

`services.worker.worker` calls `open_traces`; each task reports the phases of its epochs in its own thread. Spans are
made from the times of these reports when the epoch has ended. A thread of the SDK sends them by OTLP over HTTP, so a
collector that is slow or away costs spans, never time of an epoch.

OpenTelemetry's own variables decide everything. If none names a collector, its packages are not even imported, and
reports go to methods that do nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.process.logs import Log, get_log

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""The variables that name a collector."""

FLUSH_S = 2.0
"""How long a worker that ends waits until its last spans are sent."""

REPEAT_S = 60.0
"""At most one line of the log in this time is about trouble with traces."""

RECEIVE, DECODE, JOIN, COMMIT = "receive", "decode", "join", "commit"


class EpochTrace:
    """What a task reports of its epochs; this one drops it. All times are those of `time.monotonic`."""

    def decoded(self, began: float, tuples: int) -> None:
        """A batch of input has been decoded, and its tuples are the engine's."""

    def joined(self, began: float) -> None:
        """The program has advanced to the epoch's cut."""

    def delivered(self, began: float, results: int, committed: bool) -> None:
        """Output is delivered, and if `committed` the positions, too."""

    def epoch_ended(self, cut: int) -> None:
        """The epoch has ended; what is reported next belongs to the next one.

        Args:
            cut: event time (ms) up to which results have been computed.
        """

    def failed(self, cut: int, step: str, error: BaseException) -> None:
        """The task ends, and with it the open epoch.

        Args:
            step: what the task was doing.
        """


@dataclass(slots=True)
class Phase:
    """A phase of an epoch.

    Attributes:
        began: when it began for the first time.
        ended: when it ended for the last time.
        busy_s: how long it took without what was between.
    """

    began: float
    ended: float
    busy_s: float


class RecordedEpochs(EpochTrace):
    """Makes the spans of one task's epochs. An epoch that has read no tuple and delivered nothing gets none.

    Args:
        task: attributes of all its spans.
    """

    def __init__(self, tracer: Tracer, task: dict[str, str | int]) -> None:
        self._tracer = tracer
        self._task = task
        self._began: float | None = None  # the first epoch begins with its first phase
        self._clear()

    def _clear(self) -> None:
        self._phases: dict[str, Phase] = {}
        self._tuples = self._results = 0
        self._committed = False

    def decoded(self, began: float, tuples: int) -> None:
        """See `EpochTrace`."""
        self._tuples += tuples
        self._note(DECODE, began)

    def joined(self, began: float) -> None:
        """See `EpochTrace`."""
        self._note(JOIN, began)

    def delivered(self, began: float, results: int, committed: bool) -> None:
        """See `EpochTrace`."""
        self._results += results
        self._committed |= committed
        self._note(COMMIT, began)

    def epoch_ended(self, cut: int) -> None:
        """See `EpochTrace`."""
        if self._tuples or COMMIT in self._phases:
            self._make_spans(cut)
        self._began = time.monotonic()
        self._clear()

    def failed(self, cut: int, step: str, error: BaseException) -> None:
        """See `EpochTrace`."""
        if self._phases:
            self._make_spans(cut, f"{step}: {type(error).__name__}: {error}")
        self._clear()

    def _note(self, name: str, began: float) -> None:
        now = time.monotonic()
        phase = self._phases.setdefault(name, Phase(began, now, 0.0))
        phase.ended = now
        phase.busy_s += now - began

    def _make_spans(self, cut: int, problem: str = "") -> None:
        """Make the spans of an epoch that ends now; it has at least one phase."""
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        now, phases = time.monotonic(), self._phases
        since_1970_ns = time.time_ns() - int(now * 1e9)

        def at(seconds: float) -> int:
            return since_1970_ns + int(seconds * 1e9)

        began = min(phase.began for phase in phases.values()) if self._began is None else self._began
        read = min((phases[name].began for name in (JOIN, COMMIT) if name in phases), default=now)
        epoch = self._tracer.start_span(
            "epoch",
            attributes={
                **self._task,
                "weir.cut_ms": cut,
                "weir.input_tuples": self._tuples,
                "weir.results": self._results,
                "weir.committed": self._committed,
            },
            start_time=at(began),
        )
        inside = set_span_in_context(epoch)
        for name, phase in {RECEIVE: Phase(began, read, read - began), **phases}.items():
            attributes = {"weir.busy_ms": phase.busy_s * 1000} if name == DECODE else {}
            span = self._tracer.start_span(name, inside, attributes=attributes, start_time=at(phase.began))
            span.end(at(phase.ended))
        if problem:
            epoch.set_status(Status(StatusCode.ERROR, problem))
        epoch.end(at(now))


class Traces:
    """The traces of a worker.

    Args:
        provider: where spans go; None to make none.
    """

    def __init__(self, query: str, provider: TracerProvider | None = None) -> None:
        self._query = query
        self._provider = provider

    def of(self, task: int) -> EpochTrace:
        """The trace of one task."""
        if self._provider is None:
            return EpochTrace()
        return RecordedEpochs(self._provider.get_tracer("weir"), {"weir.query": self._query, "weir.task": task})

    def close(self) -> None:
        """Send the spans that are left, for at most FLUSH_S. No task runs any more."""
        if self._provider is not None:
            sending = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
            sending.start()
            sending.join(FLUSH_S)


def open_traces(query: str) -> Traces:
    """The traces of a worker of this query. If they cannot be sent, the log says why, and there are none."""
    named = next((name for name in ENDPOINTS if os.environ.get(name)), None)
    if named is None:
        return Traces(query)
    log = get_log("traces", query=query)
    try:
        return Traces(query, _provider(log))
    except ImportError as error:
        log.warning(f"no traces, though {named} is set: run pip install 'weir-streams[otel]'", reason=str(error))
    except ValueError as error:
        log.warning("no traces: a variable of OpenTelemetry has a wrong value", reason=str(error))
    return Traces(query)


def _provider(log: Log) -> TracerProvider:
    """Set the SDK up as the environment says.

    Raises:
        ImportError: a package is missing.
        ValueError: a variable has a value that the SDK does not take.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    sdk = logging.getLogger("opentelemetry")
    sdk.handlers[:] = [Complaints(log)]
    sdk.propagate = False
    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "weir"}))
    # It would wait at the end of the process for as long as the collector does not answer; see `Traces.close`.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class Complaints(logging.Handler):
    """Replaces the SDK's lines, several for each batch of spans that is not accepted, by one in REPEAT_S."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log
        self._last = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        """Log what the SDK complains of."""
        if abs(record.created - self._last) < REPEAT_S:  # the clock may be set back
            return
        self._last = record.created
        error = "" if record.exc_info is None else f": {record.exc_info[1]}"
        self._log.warning("trouble with traces", reason=record.getMessage() + error)
