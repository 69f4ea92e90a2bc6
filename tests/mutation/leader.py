"""Small errors in how the leader of a query asks for changes of plans, and in what it leaves its successor.

    python -m tests.mutation.leader    # exit code 1 if one survives
"""

from __future__ import annotations

import sys

from tests.mutation.outside import survivors

LEADER: dict[str, tuple[tuple[str, str], ...]] = {
    "services/program/leader.py": (
        ("return self._request is not None or view.open is not None or bool(view.waiting)", "return False"),
        ("view.open is not None or bool(view.waiting)", "False"),
        ("        self._control.append(*self._coordination.decide(view, now))\n", ""),
        ("id=next_id(self._control.view)", 'id=f"adapt-{time.time()}"'),
        ("if change is not None and change.plan != request.plan:", "if False:"),
        ("if not known and now - self._sent_s >= RESEND_S and", "if not known and self._sent_s < 0 and"),
        (" and self._has_reason(request):", ":"),
        ("                if now - sent_s < RESEND_S:\n                    continue\n", "                continue\n"),
        ("        self._withdraw_lost(view)\n", ""),
        ("            if self._written.get(number) is one:", "            if number in self._written:"),
        ("longest = max([one.measured.silence, *silences])", "longest = one.measured.silence"),
        ("len(view.changes) + 1", "len(view.changes)"),
        ("    while found in taken:", "    while False:"),
    ),
    "services/control/decisions.py": (
        ("if adaptation.change and adaptation.change not in known:", "if False:"),
        ("set() if view.open is None else {view.open.id}", "set()"),
        ("{request.id for request in view.waiting}", "set()"),
        ("History(decisions, account, first)", "History(decisions, Account(), first)"),
        ("account, first = Account(**message.account), parse_plan", "account, first = account, parse_plan"),
    ),
}
"""Per file."""

TESTS = {file: ["tests/services/program/test_leader.py"] for file in LEADER}

if __name__ == "__main__":
    sys.exit(1 if survivors(LEADER, TESTS, sys.argv[1:]) else 0)
