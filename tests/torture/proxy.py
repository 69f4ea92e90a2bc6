"""A TCP proxy between workers and one broker, which can slow down, throttle, block or cut connections."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable

from services.broker.settings import HOST

CHUNK_BYTES = 64 * 1024


class Proxy:
    """Listens on a loopback port for one target, in a thread of its own.

    Attributes:
        delay_s: how long every piece of data waits, in each direction.
        bytes_per_s: limit of each direction of each connection; 0 for no limit.
        dark: whether connections are accepted and stay open, but nothing passes.
    """

    def __init__(self, port: int, target: tuple[str, int], seed: int = 0) -> None:
        self.port = port
        self.delay_s = 0.0
        self.bytes_per_s = 0
        self.dark = False
        self._target = target
        self._rng = random.Random(seed)
        self._open: set[asyncio.StreamWriter] = set()
        self._cutting: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        started = threading.Event()
        self._loop.call_soon(started.set)
        self._thread.start()
        started.wait()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def heal(self) -> None:
        """Let all data pass without delay again."""
        self.delay_s, self.bytes_per_s, self.dark = 0.0, 0, False

    def cut(self) -> None:
        """Reset every connection in the middle of the next piece of data, or at once where nothing passes."""

        def begin() -> None:
            victims = set(self._open)
            self._cutting |= victims
            self._loop.call_later(0.2, lambda: [_reset(writer) for writer in victims])

        self._loop.call_soon_threadsafe(begin)

    def close(self) -> None:
        """Stop the proxy."""

        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._take, HOST, self.port)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_reader, to_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(writer)
            return
        both = {writer, to_writer}
        self._open |= both
        try:
            await asyncio.gather(
                self._pump(reader, to_writer, lambda: _all_reset(both)),
                self._pump(to_reader, writer, lambda: _all_reset(both)),
            )
        finally:
            self._open -= both
            self._cutting -= both
            _all_reset(both)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: Callable[[], None]) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while piece := await reader.read(CHUNK_BYTES):
                while self.dark:
                    await asyncio.sleep(0.05)
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                while piece:
                    limit = self.bytes_per_s
                    step = len(piece) if not limit else max(1, limit // 20)
                    now, piece = piece[:step], piece[step:]
                    if writer in self._cutting:
                        writer.write(now[: self._rng.randrange(len(now) + 1)])
                        await writer.drain()
                        break
                    writer.write(now)
                    await writer.drain()
                    if limit:
                        await asyncio.sleep(len(now) / limit)
                if writer in self._cutting:
                    break
        # When one side closes, close both directions: Kafka's clients and brokers do not use half-open connections.
        cut()


def _all_reset(writers: set[asyncio.StreamWriter]) -> None:
    for writer in writers:
        _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        writer.transport.abort()
