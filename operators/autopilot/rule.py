"""When a better plan pays for the change to it: `accrue` and `verdict`, pure functions of frozen numbers.

**Renting and buying.** While a better plan is known, its advantage is added up: the *excess*, in seconds of one core.
What it would have saved of a growth of the work that led to its being found is added, too (`noticed`).
The change is made when the excess has reached `Terms.factor` times what the change costs. This is the rule of the ski
rental problem (Karlin, Manasse, Rudolph, Sleator 1988). Against a clairvoyant who has the best plan at all times and
pays each change as well, with `factor` 1:

    Between two of its changes the clairvoyant has one plan. Weir pays at most one change cost C of excess until it
    changes to this plan, and C for the change, where the clairvoyant pays C for its change. So what Weir pays beyond
    the work of the best plans is at most twice what the clairvoyant pays, plus the excess of one look each.

**A limit for data made to fool it.** An adversary that makes another plan the best whenever a change has just been paid
forces two change costs per flip, which never changing would save. So changes away from the plan with which the query
began have an allowance: `Terms.allowance` of what that first plan would have taken so far, plus GRACE round trips. The
account contains what changes have cost, with the measurements before and after each, and what they have saved against
it. A change is refused if the account would exceed the allowance after a whole round trip, with what may be lost before
the swap back is noticed; a change back to a plan that is at least as good as the first one never is. Hence:

    work with changes <= (1 + allowance) * work of the first plan + GRACE * round trip + late notice

    Between two changes the account falls by at most the excess at which the change back is made, which is part of the
    round trip that was reserved, and by what is lost until a swap is noticed (about half a window). That is reserved,
    too, as much as it was at its most so far, so it is in the bound once. Between two measurements the worse of what
    they show is taken to have held, but until the running plan's work was seen to change. So the account is right as
    far as prices are; errors of prices are those of the model. If the first plan becomes cheaper while the running
    plan's work stays the same, only the next regular measurement shows it; what is lost until then is not limited.

**Evidence.** A difference of prices counts only while the logarithm of their ratio exceeds Terms.errors of its own
standard errors, and the difference itself Terms.least of the running plan's price. Without a significant difference the
excess is forgotten: there was none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

LEAST_S = 1e-12
"""No price is taken for less."""

GRACE = 2.0
"""Round trips that may be lost to learn whether changes pay."""


@dataclass(frozen=True, slots=True)
class Terms:
    """By what a change is decided.

    Attributes:
        factor: the excess, as a multiple of the change's cost, at which it is made.
        allowance: the share of the first plan's work that may be lost by changes.
        errors: standard errors by which the logarithm of the prices' ratio must exceed zero.
        least: the least difference, as a share of the running plan's price.
    """

    factor: float = 1.0
    allowance: float = 0.04
    errors: float = 3.0
    least: float = 0.05


@dataclass(frozen=True, slots=True)
class Prices:
    """What plans cost now, in seconds of one core per second of event time.

    Attributes:
        running: of the plan that runs.
        best: of the best plan known.
        first: of the plan with which the query began.
        error: the standard error of the logarithm of `running / best`.
    """

    running: float
    best: float
    first: float
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Account:
    """What has happened so far, in seconds of one core.

    Attributes:
        excess: what the best plan would have saved since it has been known to be better.
        work: the work of the plans that ran.
        saved: what they saved against the first plan; negative where they cost more.
        unsettled: seconds of event time since the last measurement, of which nothing is in `saved` yet.
        spent: the costs of all changes made; of the latest one, as predicted.
        late: the most that was lost from a change of the data that was seen until it was measured.
    """

    excess: float = 0.0
    work: float = 0.0
    saved: float = 0.0
    spent: float = 0.0
    unsettled: float = 0.0
    late: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to change plans, and why or why not.

    Attributes:
        limited: the change has paid, but too much may be lost by it.
    """

    change: bool
    reason: str
    limited: bool = False


def is_better(prices: Prices, terms: Terms) -> bool:
    """Return whether the best plan is better beyond doubt."""
    difference = prices.running - prices.best
    if difference <= terms.least * prices.running:
        return False
    return math.log(prices.running / max(prices.best, LEAST_S)) > terms.errors * prices.error


def accrue(account: Account, prices: Prices, seconds: float, terms: Terms) -> Account:
    """Return the account after some event time at these prices."""
    excess = account.excess + (prices.running - prices.best) * seconds if is_better(prices, terms) else 0.0
    return replace(
        account,
        excess=excess,
        work=account.work + prices.running * seconds,
        unsettled=account.unsettled + seconds,
    )


def settled(account: Account, before: Prices, after: Prices, changed_s: float, took_s: float = math.inf) -> Account:
    """Return the account after a measurement has shown what the running plan and the first one cost now.

    Since the last measurement either may have held. The worse one is taken: data may have been made to change just when
    nobody measured. If the running plan's work was seen to change, what held before is known.

    Args:
        changed_s: how long its work has been seen to differ, in seconds of event time; 0 if it has not.
        took_s: the work since then, or since the last measurement. This is what the running plan has cost; its prices
            say more where windows still hold older data, or where it was worse for only a part of the time.
    """
    changed = min(changed_s, account.unsettled) if changed_s > 0 else account.unsettled
    saving = min(before.first - before.running, after.first - after.running) * changed
    if saving < 0:
        saving = min(max(saving, min(before.first, after.first) * changed - took_s), 0.0)
    late = max(account.late, -saving) if changed_s > 0 else account.late
    saving += (before.first - before.running) * (account.unsettled - changed)
    return replace(account, saved=account.saved + saving, unsettled=0.0, late=late)


def noticed(account: Account, prices: Prices, lost_s: float, changed_s: float, terms: Terms) -> Account:
    """Return the account after a change of the data has been noticed, which began earlier.

    Args:
        lost_s: the work beyond the usual since then. The best plan would have saved its share of that.
        changed_s: how long the running plan's work has been seen to differ, in seconds of event time. The best plan
            would have saved as much per second as it does now.
    """
    if not is_better(prices, terms):
        return account
    lost_s = max(lost_s * (1.0 - prices.best / prices.running), (prices.running - prices.best) * changed_s)
    return replace(account, excess=account.excess + lost_s)


def pays_after_s(account: Account, prices: Prices, cost_s: float, terms: Terms) -> float:
    """Return the seconds of event time until a change that is better has paid for itself, at these prices."""
    return max(terms.factor * cost_s - account.excess, 0.0) / (prices.running - prices.best)


def paid(account: Account, cost_s: float) -> Account:
    """Return the account after a change that costs so much."""
    return replace(account, excess=0.0, spent=account.spent + cost_s)


def charged(account: Account, cost_s: float) -> Account:
    """Return the account after a change has turned out to cost so much more than predicted."""
    return replace(account, spent=account.spent + cost_s)


def verdict(account: Account, prices: Prices, cost_s: float, terms: Terms) -> Verdict:
    """Decide about a change to the best plan.

    Args:
        cost_s: the predicted cost of the change, in seconds of one core.
    """
    if not is_better(prices, terms):
        return Verdict(False, f"it would save {_share(prices)}, which is within the error of the estimates")
    needed = terms.factor * cost_s
    if account.excess < needed:
        return Verdict(
            False, f"it would save {_share(prices)}; the {account.excess:.3g} s lost so far do not pay {needed:.3g} s"
        )
    back = prices.best <= prices.first < prices.running
    round_trip = (2.0 + terms.factor) * cost_s
    allowed = terms.allowance * (account.work + account.saved) + GRACE * round_trip
    if not back and account.spent - account.saved + round_trip + account.late > allowed:
        return Verdict(
            False,
            f"it would save {_share(prices)}, but changes have cost {account.spent:.3g} s so far and saved "
            f"{account.saved:.3g} s: no more than {terms.allowance:.0%} of the work is risked",
            limited=True,
        )
    return Verdict(True, f"it saves {_share(prices)} and has paid for the change")


def _share(prices: Prices) -> str:
    share = (prices.running - prices.best) / max(prices.running, 1e-300)
    return f"{share:.0%} of the work"
