"""`Connection`, without Kafka: a server answers in its place that is none."""

from __future__ import annotations

import asyncio
import socketserver
import threading

import pytest

from schemas.errors import BrokerError
from services.broker.background import free_port
from services.kafka.topics import Refused, TopicAdmin
from services.process.logs import get_log
from services.process.security import KafkaClients
from services.process.settings import WorkerSettings
from services.worker import connection
from services.worker.connection import Connection
from services.worker.web import Pages


class NoKafka(socketserver.BaseRequestHandler):
    """Answers a TLS handshake with something else."""

    def handle(self) -> None:
        """Answer once."""
        self.request.recv(1_000)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_an_answer_about_an_outage_that_is_over_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first outage ended before its cause was judged. At the next one the worker said that Kafka refused it, and
    that it would end, though the brokers were only away."""
    monkeypatch.setattr(connection, "LOST_S", 0.0)

    async def two_outages() -> None:
        with socketserver.TCPServer(("127.0.0.1", free_port()), NoKafka) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            settings = WorkerSettings(KafkaClients(f"127.0.0.1:{server.server_address[1]}", "SSL"), "g")
            watched = Connection(TopicAdmin(settings.clients), settings, Pages(), get_log("test"))
            asked: list[BrokerError | None] = []

            def ask() -> BrokerError | None:
                asked.append(Connection.ask(watched))
                return asked[-1]

            monkeypatch.setattr(watched, "ask", ask)
            watched.check(True)
            watched.check(False)
            while not asked:
                await asyncio.sleep(0.01)
            server.shutdown()
        assert isinstance(asked[0], Refused)
        watched.check(True)
        for _ in range(3):
            await asyncio.sleep(0.01)
            watched.check(False)

    asyncio.run(two_outages())
    said = [record.getMessage().partition(";")[0] for record in caplog.records if record.name == "weir.test"]
    assert said == ["no connection to Kafka"] * 2
