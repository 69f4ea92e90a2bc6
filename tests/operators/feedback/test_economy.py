"""Guards that cost more than they save rest, and try again on what they may lose."""

from __future__ import annotations

from operators.feedback.economy import GUARDED, Account

TRIAL = 1e6


def slices_open(account: Account, count: int, *, kept_back: int = 0, spent: float = 0.0, granted: float = 0.0) -> int:
    """How many of some equal slices it watched in."""
    watched = 0
    for _ in range(count):
        watched += account.open
        kept, cost = (kept_back, spent) if account.open else (0, 0.0)
        account.settle(admitted=100, kept_back=kept, returned=0, spent=cost, granted=granted, trial=TRIAL)
    return watched


def test_what_saves_nothing_rests() -> None:
    account = Account([], TRIAL)
    assert slices_open(account, 1000, spent=10_000.0) == -(-TRIAL // (10_000 + GUARDED)) + 1
    assert not account.open


def test_it_loses_its_share_at_most() -> None:
    """Over a long time what trials cost is what was granted, and they go on."""
    account = Account([], TRIAL)
    watched = slices_open(account, 100_000, spent=10_000.0, granted=500.0)
    assert 0.9 < watched * (10_000 + GUARDED) / (100_000 * 500.0 + TRIAL) < 1.1


def test_what_pays_never_rests() -> None:
    account = Account([], TRIAL)
    assert slices_open(account, 1000, kept_back=1000, spent=10_000.0) == 1000


def test_old_savings_do_not_pay_for_new_losses() -> None:
    account = Account([], TRIAL)
    slices_open(account, 10_000, kept_back=10_000)
    assert slices_open(account, 1000, spent=10_000.0) <= 4 * TRIAL / (10_000 + GUARDED) + 1
