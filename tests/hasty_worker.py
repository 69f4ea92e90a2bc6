"""`weir` whose autopilot changes plans again and again, to plans drawn at random; see `tests.hasty`.

python -m tests.hasty_worker worker ...
"""

from __future__ import annotations

import random
from typing import Any

from operators.autopilot.autopilot import Autopilot
from operators.engine.engine import Engine
from operators.plan.plan import Join, Leaf, Plan
from services.cli import main
from tests.hasty import always_another, hasty


def another(running: Plan) -> Plan:
    """Draw a plan."""
    parts: list[Plan] = [Leaf(alias) for alias in running.aliases]
    while len(parts) > 1:
        random.shuffle(parts)
        parts.append(Join(parts.pop(), parts.pop()))
    return parts[0]


if __name__ == "__main__":
    begin = Autopilot.__init__

    def begin_hasty(self: Autopilot, engine: Engine, limits: object, **more: Any) -> None:
        begin(self, engine, hasty(), **{**more, "look_always": True})

    Autopilot.__init__ = begin_hasty  # type: ignore[assignment,method-assign]
    with always_another(another):
        main()
