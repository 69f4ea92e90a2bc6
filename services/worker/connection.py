"""Watches the worker's connection to Kafka: logs its loss, shows it on /healthz, and ends a worker that is refused.

The worker's loop calls `Connection.check`. The consumer knows only that it has no connection. To learn why, this module
asks a client of the other library, as the worker does at its start.
"""

from __future__ import annotations

import asyncio
import time

from schemas.errors import BrokerError
from services.kafka.topics import Refused, TopicAdmin
from services.process.logs import Log
from services.process.settings import WorkerSettings
from services.worker.health_problem import shown_time
from services.worker.web import Pages

LOST_S = 2.0
"""How long there is no connection to Kafka before the log says so."""

FIRST_S = 10.0
"""How long the first connection may take."""


class Connection:
    """The connection of one worker. Call `check` several times a second on the event loop."""

    def __init__(self, admin: TopicAdmin, settings: WorkerSettings, pages: Pages, log: Log) -> None:
        self._admin = admin
        self._settings = settings
        self._pages = pages
        self._log = log
        self._seen_s = time.monotonic() + FIRST_S - LOST_S
        self._refused_s: float | None = None
        self._lost = False
        self._answer: asyncio.Future[BrokerError | None] | None = None

    def check(self, connected: bool) -> None:
        """Note whether there is a connection.

        Raises:
            Refused: Kafka has refused the worker for longer than `WorkerSettings.patience_ms`, and the worker is not
                to wait.
        """
        now = time.monotonic()
        if connected:
            if self._lost:
                self._log.info("connected to Kafka again")
            self._seen_s, self._refused_s, self._lost, self._pages.connection_problem = now, None, False, ""
            self._answer = None  # it is about an outage that is over
            return
        if now - self._seen_s <= LOST_S:
            return
        if not self._lost:
            self._lost = True
            self._log.warning(
                "no connection to Kafka; retrying, nothing is lost meanwhile", brokers=self._settings.clients.bootstrap
            )
        if self._answer is None:
            self._answer = asyncio.get_running_loop().run_in_executor(None, self.ask)
        elif self._answer.done():
            error, self._answer = self._answer.result(), None
            self._judge(error, now)

    def ask(self) -> BrokerError | None:
        """Why no client can connect to Kafka; None if one can. Blocks."""
        try:
            self._admin.check()
        except BrokerError as error:
            return error
        return None

    def _judge(self, error: BrokerError | None, now: float) -> None:
        patience_s = self._settings.patience_ms / 1000
        if not isinstance(error, Refused):
            self._refused_s = None
        elif self._refused_s is None:
            self._refused_s = now
            ends = "" if self._settings.wait else f"; the worker ends in {patience_s:g} s unless it is let in"
            self._log.warning(f"{error}{ends}")
        elif now - self._refused_s > patience_s and not self._settings.wait:
            raise error
        if now - self._seen_s > patience_s:
            since = shown_time(time.time() - (now - self._seen_s))
            why = error or "the consumer is joining anew"
            self._pages.connection_problem = f"no connection to Kafka since {since}: {why}"
