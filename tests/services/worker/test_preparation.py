"""The next plan version beside the one in force: what happens when it cannot be prepared, or is not wanted any more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from operators.plan.plan import Leaf
from schemas.errors import BrokerError, WeirError
from schemas.messages.control import Propose
from services.control.barrier import View
from services.control.plan_versions import PlanVersion
from services.process.logs import get_log
from services.worker.preparation import Failed, Preparation

VERSION = PlanVersion(1, "g.v1.a", Leaf("A"), "a", True, None)
PROPOSED = View(open=Propose(id="a", plan="A", strategy="hybmig-bsc", fingerprint="f", tasks=1))
WITHDRAWN = View()


class Runner:
    """A runner whose tasks fail while they end."""

    def __init__(self, failed: Failed) -> None:
        self.started = self.stopped = False
        self._failed = failed

    def start(self) -> None:
        self.started = True

    async def stop(self) -> None:
        self._failed(WeirError("its topics are gone"))
        self.stopped = True

    def failure(self) -> None:
        return None


class Scene:
    """A worker's preparation with what it calls."""

    def __init__(self, error: WeirError | None = None) -> None:
        self.runners: list[Runner] = []
        self.discarded: list[PlanVersion] = []
        self.ended_by: list[BaseException] = []
        self._error = error
        versions: Any = SimpleNamespace(proposed=lambda view: VERSION)
        self.preparation = Preparation(versions, self._make, self._discard, self.ended_by.append, get_log("test"))

    async def _make(self, version: PlanVersion, failed: Failed) -> Any:
        if self._error is not None:
            raise self._error
        self.runners.append(Runner(failed))
        return self.runners[-1], lambda: True

    async def _discard(self, version: PlanVersion) -> None:
        self.discarded.append(version)


def test_why_a_version_cannot_be_prepared() -> None:
    async def play(scene: Scene) -> None:
        await scene.preparation.look(PROPOSED)
        assert scene.preparation.failure("a") == "topics do not show up"
        assert scene.preparation.failure("b") == ""
        assert not scene.preparation.is_prepared("a")
        await scene.preparation.look(WITHDRAWN)
        assert scene.discarded == [VERSION]

    asyncio.run(play(Scene(BrokerError("topics do not show up"))))


@pytest.mark.parametrize("by", ["withdrawal", "stop"])
def test_a_version_that_ends_does_not_end_the_worker(by: str) -> None:
    """Its tasks may fail meanwhile: another worker deletes its topics."""

    async def play(scene: Scene) -> None:
        await scene.preparation.look(PROPOSED)
        assert scene.preparation.is_prepared("a")
        if by == "stop":
            await scene.preparation.close()
        else:
            await scene.preparation.look(WITHDRAWN)
        assert scene.runners[0].stopped
        assert scene.ended_by == []

    asyncio.run(play(Scene()))


def test_a_version_in_force_ends_the_worker_when_it_fails() -> None:
    async def play(scene: Scene) -> None:
        await scene.preparation.look(PROPOSED)
        runner = await scene.preparation.take_over("a")
        assert runner is not None
        await runner.stop()
        assert len(scene.ended_by) == 1

    asyncio.run(play(Scene()))
