"""Structured logs on standard error: one line per event, as JSON or as key=value.

    log = get_log("task")
    log.warning("snapshot discarded", task=3, reason="damaged block")

Weir's own events have fields. Lines of the libraries (Faust, aiokafka, librdkafka) are written in the same form from
WARNING up, each kind at most once a minute: aiokafka writes some fifteen a second while a broker is unreachable. Their
common messages are replaced by clearer ones (`PLAIN`), with the original text as the reason. No client configuration is
ever passed to this module, so it cannot print a secret. A command that does not call `set_up_logs` prints warnings in
the same form, as text.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import Any

FORMATS = ("text", "json")


class Log:
    """A named logger whose keyword arguments become fields of the line."""

    def __init__(self, name: str, **bound: Any) -> None:
        self._logger = logging.getLogger(f"weir.{name}")
        self._bound = bound

    def bind(self, **fields: Any) -> Log:
        """The same logger with more fields on every line."""
        bound = Log.__new__(Log)
        bound._logger = self._logger
        bound._bound = self._bound | fields
        return bound

    def debug(self, message: str, **fields: Any) -> None:
        """Log for developers of Weir."""
        self._write(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: Any) -> None:
        """Log an event that an operator may want to look up later."""
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, **fields: Any) -> None:
        """Log a problem in spite of which Weir continues, but which an operator should check."""
        self._write(logging.WARNING, message, fields)

    def error(self, message: str, **fields: Any) -> None:
        """Log a failure."""
        self._write(logging.ERROR, message, fields)

    def _write(self, level: int, message: str, fields: dict[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", message, extra={"fields": self._bound | fields})


def get_log(name: str, **bound: Any) -> Log:
    """The logger of one component; `bound` are fields of every line."""
    return Log(name, **bound)


REPEAT_S = 60.0


PLAIN = (
    (r"Task timed out!", "the consumer group takes long to hand tasks over; if that repeats, raise --session-timeout"),
    # The line after that one, and one that repeats the worker's own message when it ends.
    (r"make sure it's hanging|^Crashed reason=", ""),
    # This happens whenever a worker joins or leaves.
    (r"Heartbeat failed for group \S+ because it is rebalancing", ""),
    (
        r"generation id is not|member_id was not recognized",
        "the consumer group has gone on without this worker, joining it again; if that repeats, raise "
        "--session-timeout",
    ),
    (
        r"(?i)authenticat|authoriz|\bsasl\b|\bssl\b|certificate",
        "Kafka refuses the consumer: check --security-protocol, user name, password, certificates and rights",
    ),
    (
        r"[Hh]eartbeat|[Cc]oordinator|LeaveGroup|JoinGroup|SyncGroup",
        "the coordinator of the consumer group does not answer, retrying; tasks may move to other workers meanwhile",
    ),
    (
        r"[Uu]nable connect|update metadata|Failed fetch|ConnectionError|NodeNotReady|Connection at |never retrieved",
        "a connection to a Kafka broker is lost, retrying",
    ),
)
"""Replacements for lines of libraries: the first pattern found in a line decides; an empty text drops the line."""


def _put_plainly(record: logging.LogRecord) -> bool:
    """Replace the message of a library's line by a clearer one; False when the line is to be dropped."""
    message = record.getMessage()
    if record.exc_info and _nobody_waited(message, record.exc_info[1]):
        record.exc_info = None
    for pattern, ours in PLAIN:
        if re.search(pattern, message):
            if not ours:
                return False
            if record.exc_info:
                break  # unexpected, so the line stays as it is
            record.name, record.msg, record.args = "weir.kafka", ours, ()
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.fields = {"reason": message}
            break
    return True


def _nobody_waited(message: str, error: BaseException | None) -> bool:
    """Whether asyncio reports a request of aiokafka that nobody waited for any more when its connection was lost."""
    return "never retrieved" in message and (
        isinstance(error, ConnectionError | EOFError) or type(error).__name__.endswith("ConnectionError")
    )


class RateLimit(logging.Filter):
    """Lets each kind of line of a library (logger and message before its arguments) through once in REPEAT_S."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the line; always True for Weir's own lines."""
        if record.name.startswith("weir"):
            return True
        if not _put_plainly(record):
            return False
        kind = (record.name, str(record.msg))
        # The clock may be set back.
        if abs(record.created - self._last.get(kind, -REPEAT_S)) < REPEAT_S:
            return False
        if len(self._last) > 1000:
            self._last.clear()
        self._last[kind] = record.created
        return True


class LineFormatter(logging.Formatter):
    """One line per record. Fields that are floats are shortened; line breaks are escaped."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        message = record.getMessage()
        fields = {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in getattr(record, "fields", {}).items()
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            fields["error"] = f"{type(error).__name__}: {error}"
            if record.levelno >= logging.ERROR:
                fields["traceback"] = self.formatException(record.exc_info)
        if self._as_json:
            head = {"ts": stamp, "level": record.levelname.lower(), "logger": record.name, "message": message}
            return json.dumps(head | fields, default=str, ensure_ascii=False)
        pairs = "".join(f" {name}={_shown(value)}" for name, value in fields.items())
        return f"{stamp} {record.levelname.lower():<7} {record.name}: {_escaped(message)}{pairs}"


def _escaped(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r")


def _shown(value: Any) -> str:
    text = _escaped(str(value))
    return json.dumps(text, ensure_ascii=False) if not text or any(c in text for c in ' "=') else text


def set_up_logs(form: str = "text", level: str = "info") -> None:
    """Send all logging of the process to standard error in the given form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(form == "json"))
    if level != "debug":
        handler.addFilter(RateLimit())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("weir").setLevel(level.upper())
    if level == "debug":
        for name in ("faust", "aiokafka"):
            logging.getLogger(name).setLevel(logging.INFO)


if logging.lastResort is not None:
    # What Python uses where no handler is set up. Without a formatter it would print no fields.
    logging.lastResort.setFormatter(LineFormatter(as_json=False))
