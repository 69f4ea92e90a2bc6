"""Gets the schemas of a registry by their numbers, which records in its wire format carry, and registers schemas.

A number means the same schema for ever, so each that the registry has is asked once. One that it does not have may be
registered later, or be known to another replica of the registry, so after a while it is asked again. The registry is
asked in a thread of its own, and again until it has answered. Meanwhile `SchemaRegistry.schema` raises
`SchemaUnavailable`, and the records wait.

The client is Confluent's (`confluent_kafka.schema_registry`). Other registries speak its protocol, too: Apicurio,
Karapace, Redpanda.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from schemas.codecs.decoded import RecordError
from schemas.errors import BrokerError, DataError, UsageError
from services.formats.registry_access import RegistryAccess
from services.formats.schema_kinds import SchemaKind
from services.process.logs import get_log

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

PATIENCE_S: Final = 0.2
"""How long a task waits for a schema that it asks for first. Other partitions and epochs wait with it."""

PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0

GRACE_S: Final = 3.0
"""How long the registry is asked for a schema that it does not have, before records that name it are dead letters."""

GRACE_EVERY_S: Final = 30.0

MISSING_S: Final = 30.0
"""How long the answer that there is no such schema is believed."""

MOST_MISSING: Final = 1_000
"""Of so many numbers that the registry does not have, this is remembered; garbage could name any."""

_NO_SUCH_SUBJECT: Final = 40401
_NO_SUCH_VERSION: Final = 40402
_NO_SUCH_SCHEMA: Final = 40403
_MAX_REFERENCES: Final = 500
_TRY_AGAIN: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)

LOG = get_log("schemas")

T = TypeVar("T")


class NoSuchSchema(RecordError):
    """The registry has no schema of a record's number."""


class SchemaUnavailable(BrokerError):
    """The registry has not answered yet which schema a record has."""


class SchemaRegistry(Generic[T]):
    """The schemas of one registry, of one kind. Safe to call from several threads.

    Args:
        patience_s: how long `schema` waits for the answer to its first question about a number.
    """

    def __init__(self, url: str, access: RegistryAccess, kind: SchemaKind[T], patience_s: float = PATIENCE_S) -> None:
        self.url = url
        self._kind = kind
        self._access = access
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._answers: dict[int, Future[T | _Missing]] = {}
        # Until when the registry is believed not to have a schema; the last answers are at the end.
        self._missing_until: dict[int, float] = {}
        self._problem = ""
        self._next_grace = 0.0

    def schema(self, number: int) -> T:
        """Return the schema of a number.

        Raises:
            NoSuchSchema: there is none.
            RecordError: it is of another kind, or broken.
            SchemaUnavailable: the registry has not answered yet.
        """
        with self._lock:
            answer = self._answers.get(number)
            until = self._missing_until.get(number)
            is_new = answer is None or (until is not None and answer.done() and time.monotonic() >= until)
            if answer is None or is_new:
                answer = self._answers[number] = Future()
                # A thread that waits for a dead registry must not keep the process alive.
                threading.Thread(target=self._ask, args=(number, answer), name=f"schema-{number}", daemon=True).start()
        try:
            found = answer.result(self._patience_s if is_new else 0)
        except TimeoutError:
            why = self._problem or "no answer yet"
            raise SchemaUnavailable(f"schema {number} of the registry {self.url} is unknown: {why}") from None
        if isinstance(found, _Missing):
            raise (RecordError if isinstance(found, _Unusable) else NoSuchSchema)(str(found))
        return found

    def _ask(self, number: int, answer: Future[T | _Missing]) -> None:
        """Ask until the registry has answered: a schema, or why a record cannot have it."""
        pause_s = PAUSE_S
        patient_until: float | None = None
        while True:
            try:
                found = self._asked(number)
                with self._lock:
                    self._missing_until.pop(number, None)
                answer.set_result(found)
                break
            except _Missing as error:
                # A replica of a registry may learn of a schema a little later than who reads its records.
                patient_until = self._grace(number) if patient_until is None else patient_until
                if time.monotonic() >= patient_until:
                    self._note_missing(number)
                    answer.set_result(error)
                    break
            except DataError as error:
                answer.set_result(_Unusable(str(error)))
                break
            except Exception as error:  # whatever the client and its HTTP library raise: the operator has to see it
                self._note(" ".join(str(error).split()) or type(error).__name__)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._note("")

    def _grace(self, number: int) -> float:
        """Until when to ask again for a number that the registry does not have. Only one number in a while has time,
        since garbage could name any, and none that was missing before."""
        with self._lock:
            now = time.monotonic()
            if now < self._next_grace or number in self._missing_until:
                return now
            self._next_grace = now + GRACE_EVERY_S
            return now + GRACE_S

    def _note_missing(self, number: int) -> None:
        """Remember that the registry does not have a number; forget the number whose answer is the oldest if there are
        too many."""
        with self._lock:
            self._missing_until.pop(number, None)
            self._missing_until[number] = time.monotonic() + MISSING_S
            if len(self._missing_until) > MOST_MISSING:
                oldest = next(iter(self._missing_until))
                del self._missing_until[oldest]
                self._answers.pop(oldest, None)

    def _note(self, problem: str) -> None:
        with self._lock:
            if problem == self._problem:
                return
            self._problem = problem
        if problem:
            LOG.warning("the schema registry does not answer, records wait", registry=self.url, reason=problem)
        else:
            LOG.info("the schema registry answers again", registry=self.url)

    def _asked(self, number: int) -> T:
        """Ask once.

        Raises:
            _Missing: there is no such schema.
            DataError: it is of another kind, or broken.
            Exception: the registry does not answer.
        """
        from confluent_kafka.schema_registry import SchemaRegistryClient
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        # A client of its own: one for all would share a connection between threads.
        with SchemaRegistryClient(self._access.client_settings(self.url)) as client:
            try:
                return _parsed(client, client.get_schema(number), number, self._kind)
            except SchemaRegistryError as error:
                if error.error_code in (_NO_SUCH_SUBJECT, _NO_SUCH_VERSION, _NO_SUCH_SCHEMA):
                    raise _Missing(f"the registry has no schema {number}") from None
                raise


class _Missing(Exception):
    """The registry answers that it has no such schema."""


class _Unusable(_Missing):
    """It has one, and that cannot be used."""


def latest_schema(url: str, access: RegistryAccess, subject: str, kind: SchemaKind[T]) -> tuple[int, T] | None:
    """Return the number of the latest schema of a subject, and that schema; None without one.

    Raises:
        DataError: it is of another kind, or broken.
        BrokerError: the registry does not answer.
    """
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    try:
        with SchemaRegistryClient(access.client_settings(url)) as client:
            latest = client.get_latest_version(subject)
            number = latest.schema_id or 0
            return number, _parsed(client, latest.schema, number, kind)
    except DataError:
        raise
    except SchemaRegistryError as error:
        if error.error_code in (_NO_SUCH_SUBJECT, _NO_SUCH_VERSION):
            return None
        raise BrokerError(f"the schema registry {url} does not answer: {error}") from None
    except Exception as error:  # whatever the client's HTTP library raises
        raise BrokerError(f"the schema registry {url} does not answer: {error}") from None


def register_schema(url: str, access: RegistryAccess, subject: str, schema: str, kind: str) -> int:
    """Register a schema under a subject, and return its number. One that is there keeps its number, and needs no right
    to write.

    Args:
        kind: of the schema: `AVRO`, `JSON` or `PROTOBUF`.

    Raises:
        UsageError: the registry refuses it; says why.
        BrokerError: the registry does not answer.
    """
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    given = Schema(schema, kind)
    try:
        with SchemaRegistryClient(access.client_settings(url)) as client:
            try:
                return int(client.lookup_schema(subject, given).schema_id or 0)
            except SchemaRegistryError as error:
                if error.http_status_code != HTTPStatus.NOT_FOUND:
                    raise
            return int(client.register_schema(subject, given))
    except SchemaRegistryError as error:
        if 400 <= error.http_status_code < 500 and error.http_status_code not in _TRY_AGAIN:
            raise UsageError(
                f"the schema registry {url} refuses the schema of the results, subject {subject!r}: "
                f"{' '.join(str(error.error_message).split())}"
            ) from None
        raise BrokerError(f"the schema registry {url} does not answer: {error}") from None
    except Exception as error:  # whatever the client's HTTP library raises
        raise BrokerError(f"the schema registry {url} does not answer: {error}") from None


def _parsed(client: SchemaRegistryClient, schema: Schema, number: int, kind: SchemaKind[T]) -> T:
    """Parse a schema of a registry.

    Raises:
        DataError: it is of another kind, or broken.
        Exception: the registry does not answer what the schema refers to.
    """
    if (found := schema.schema_type or "AVRO") != kind.name:
        raise DataError(f"schema {number} of the registry is {found}, expected {kind.name}")
    references = _referenced(client, schema)
    try:
        return kind.parse(schema.schema_str or "", references)
    except DataError as error:
        raise DataError(f"schema {number} of the registry cannot be used: {error}") from None
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise DataError(f"schema {number} of the registry cannot be used: {why}") from None


def _referenced(client: SchemaRegistryClient, schema: Schema) -> list[tuple[str, str]]:
    """Names and texts of the schemas that a schema refers to, each after those that it refers to itself."""
    found: dict[tuple[str, int], tuple[str, str]] = {}
    seen: set[tuple[str, int]] = set()

    def add(one: Schema) -> None:
        for reference in one.references or []:
            at = reference.subject or "", reference.version or 0
            if at in seen:
                continue
            seen.add(at)
            if len(seen) > _MAX_REFERENCES:
                raise DataError(f"it refers to more than {_MAX_REFERENCES} other schemas")
            version = client.get_version(*at)
            add(version.schema)
            found[at] = reference.name or "", version.schema.schema_str or ""

    add(schema)
    return list(found.values())
