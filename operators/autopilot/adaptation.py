"""The record of a decision about the plan: what was known, what was expected, and what came of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change of plans brings.

    Attributes:
        saving: the share of the work that is saved; negative where there is more work.
        cost: seconds of one core that the change itself takes.
        silence: the longest halt of processing, in seconds.
    """

    saving: float
    cost: float
    silence: float


@dataclass(frozen=True, slots=True)
class Adaptation:
    """A change of plans that was made, or weighed and not made.

    Attributes:
        at: event time of the decision, ms.
        made: False for a change that was not made.
        from_plan: the running plan.
        to_plan: the better plan.
        strategy: the migration strategy that is expected, or that ran.
        reason: why it was made, or why not.
        evidence: what the decision rests on, by name: rates per second (`A`), and shares of combinations (`A B`), each
            with the factor by which it may be off (one standard error).
        predicted: what was expected.
        measured: what came of it; None until it is known.
    """

    at: int
    made: bool
    from_plan: str
    to_plan: str
    strategy: str
    reason: str
    evidence: dict[str, tuple[float, float]]
    predicted: Effect
    measured: Effect | None = None

    def document(self) -> dict[str, Any]:
        """Return JSON-compatible values."""
        return asdict(self)

    def line(self) -> str:
        """Return the decision as one line for people."""
        verb = "changed" if self.made else "kept"
        found = "" if self.measured is None else f"; measured: {self.measured.saving:.0%} saved"
        return (
            f"{verb} {self.from_plan} -> {self.to_plan} by {self.strategy}: {self.reason} "
            f"(predicted: {self.predicted.saving:.0%} saved, {self.predicted.cost:.3g} s of work, "
            f"silence {self.predicted.silence * 1000:.0f} ms{found})"
        )
