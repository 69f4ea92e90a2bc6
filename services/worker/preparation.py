"""Prepares the next version of a distributed plan beside the one in force. Entry: `Preparation`.

`services.control.plan_versions` says when a change is prepared. The worker's loop calls `look`; the tasks of the
version in force answer a proposal when `is_prepared` says so, and refuse it when there is a `failure`. A version that
was prepared takes over with `take_over`; a proposal that is withdrawn ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.control.barrier import View
from services.control.plan_versions import PlanVersion, PlanVersions
from services.process.logs import Log
from services.worker.plan_runner import PlanRunner

Failed = Callable[[BaseException], None]
"""Is called with the error of a version."""


@dataclass(slots=True)
class Prepared:
    """A version that this worker runs beside the one in force.

    Attributes:
        runner: None while it is being made.
        is_ready: whether the version has caught up.
        failure: why it cannot go on; None while it can.
        in_force: whether it has taken over.
    """

    version: PlanVersion
    runner: PlanRunner | None = None
    is_ready: Callable[[], bool] = bool
    failure: BaseException | None = None
    in_force: bool = False


class Preparation:
    """The next version of one worker. Runs on the event loop, but for `is_prepared` and `failure`.

    Args:
        make: makes the runner of a version, and what says whether it has caught up.
        discard: deletes the topics of a version that nobody needs.
        fail: called with the error of a version that has taken over.
    """

    def __init__(
        self,
        versions: PlanVersions,
        make: Callable[[PlanVersion, Failed], Awaitable[tuple[PlanRunner, Callable[[], bool]]]],
        discard: Callable[[PlanVersion], Awaitable[None]],
        fail: Failed,
        log: Log,
    ) -> None:
        self._versions = versions
        self._make = make
        self._discard = discard
        self._fail = fail
        self._log = log
        self._prepared: Prepared | None = None
        self._seen = ""

    def is_prepared(self, id_: str) -> bool:
        """Whether the version that a request needs can take over. For any thread."""
        found = self._prepared
        return found is not None and found.version.id == id_ and found.failure is None and found.is_ready()

    def failure(self, id_: str) -> str:
        """Why the version that a request needs cannot be prepared; empty when it can. For any thread."""
        found = self._prepared
        return "" if found is None or found.version.id != id_ or found.failure is None else str(found.failure)

    async def look(self, view: View) -> None:
        """Begin to prepare a version that has been proposed, and end one that is not wanted any more."""
        found = self._prepared
        if found is not None and found.runner is not None and (failure := found.runner.failure()) is not None:
            self._failed(found, failure)
        if found is not None and not self._is_wanted(found.version, view):
            await self._end(found)
            await self._discard(found.version)
        if view.open is None or view.open.id == self._seen or self._prepared is not None:
            return
        self._seen = view.open.id
        version = self._versions.proposed(view)
        if version is not None:
            self._log.info("preparing a plan", version=version.number, id=version.id)
            await self._begin(version)

    @staticmethod
    def _is_wanted(version: PlanVersion, view: View) -> bool:
        return view.change(version.id) is not None or (view.open is not None and view.open.id == version.id)

    async def _begin(self, version: PlanVersion) -> None:
        found = self._prepared = Prepared(version)
        try:
            found.runner, found.is_ready = await self._make(version, lambda error: self._failed(found, error))
            found.runner.start()
        except Exception as error:
            self._failed(found, error)

    def _failed(self, found: Prepared, error: BaseException) -> None:
        """A version cannot go on: the proposal is refused, unless the version has taken over."""
        if found.in_force:
            self._fail(error)
        elif found.failure is None:
            found.failure = error
            self._log.warning("the plan cannot be prepared", version=found.version.number, reason=str(error))

    async def take_over(self, id_: str) -> PlanRunner | None:
        """The runner of a version that is in force from now on; None if it was not prepared here."""
        found = self._prepared
        if found is None or found.version.id != id_:
            return None
        if found.runner is None or found.failure is not None:
            await self._end(found)
            return None
        self._prepared, found.in_force = None, True
        return found.runner

    async def close(self) -> None:
        """End what is being prepared."""
        if self._prepared is not None:
            await self._end(self._prepared)

    async def _end(self, found: Prepared) -> None:
        self._prepared = None
        if found.runner is not None:
            await asyncio.shield(found.runner.stop())
