"""The table of the trials' outcomes so far."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

LIMITS = ("network namespaces", "file systems", "clocks")
"""First words of notes about features that a machine does not permit."""

Lines = Sequence[dict[str, Any]]


def table(outcomes: Lines) -> str:
    """Trials by kind of query; faults by kind, with the silence that followed; violations with their evidence."""
    trials = Counter(f"{o['kind']}{' x3' if o['brokers'] > 1 else ''}" for o in outcomes)
    bad = Counter(f"{o['kind']}{' x3' if o['brokers'] > 1 else ''}" for o in outcomes if o["violations"])
    silences: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        for kind, seconds in outcome["silences"]:
            silences[kind].append(seconds)
    faults = Counter(kind for o in outcomes for kind in o["faults"])
    lines = [
        f"{len(outcomes)} trials, {sum(faults.values())} faults and requests, "
        f"{sum(o['expected'] for o in outcomes):,} records expected, "
        f"{sum(bool(o['violations']) for o in outcomes)} trials with violations, "
        f"{sum(o['seconds'] for o in outcomes):,.0f} s",
        "",
        "| trials of | number | with violations |",
        "| --- | --- | --- |",
        *(f"| {kind} | {n} | {bad[kind]} |" for kind, n in sorted(trials.items())),
        "",
        "| fault | number | silence p50 | p99 | max |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind, n in sorted(faults.items()):
        found = sorted(silences[kind])
        if found:
            lines.append(
                f"| {kind} | {n} | {_at(found, 0.5):.1f} s | {_at(found, 0.99):.1f} s | {found[-1]:.1f} s |"
            )
        else:
            lines.append(f"| {kind} | {n} | | | |")
    lines.append("")
    for outcome in outcomes:
        for violation in outcome["violations"]:
            lines.append(
                f"- seed {outcome['seed']} {outcome['kind']} x{outcome['brokers']}: {violation['kind']}: "
                f"{violation['text'][:300]!r} ({outcome['evidence']})"
            )
    limits = {note for o in outcomes for note in o["notes"] if note.startswith(LIMITS)}
    lines += [f"- note: {note}" for note in sorted(limits)]
    return "\n".join(lines)


def _at(ascending: Sequence[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]
