"""The record of a decision about the plan: what was known, what was expected, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
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
        change: the name of the change of plans; empty where none was made.
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
    change: str = ""

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> Adaptation:
        """Read what `document` has returned.

        Raises:
            KeyError, TypeError, ValueError: it is damaged.
        """
        effects = {name: document[name] and Effect(**document[name]) for name in ("predicted", "measured")}
        evidence = {name: (float(value), float(factor)) for name, (value, factor) in document["evidence"].items()}
        known = {field.name: document[field.name] for field in fields(Adaptation)}
        return Adaptation(**{**known, **effects, "evidence": evidence})

    def document(self) -> dict[str, Any]:
        """Return JSON-compatible values."""
        return asdict(self)

    def evidence_lines(self) -> list[str]:
        """Return what the decision rests on, a line for each rate and each share."""
        lines = []
        for name, (value, factor) in self.evidence.items():
            several = " " in name
            known = f"one of {1 / max(value, 1e-300):,.4g} combinations matches" if several else f"{value:,.4g}/s"
            lines.append(f"{name}: {known}, within a factor of {factor:.2f}")
        return lines

    def line(self) -> str:
        """Return the decision as one line for people."""
        verb = "changed" if self.made else "kept"
        found = "" if self.measured is None else f"; measured: {self.measured.saving:.0%} saved"
        return (
            f"{verb} {self.from_plan} -> {self.to_plan} by {self.strategy}: {self.reason} "
            f"(predicted: {self.predicted.saving:.0%} saved, {self.predicted.cost:.3g} s of work, "
            f"silence {self.predicted.silence * 1000:.0f} ms{found})"
        )
