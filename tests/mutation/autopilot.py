"""Small errors in how plans are priced and changes decided, per file: see `tests.mutation.mutants`."""

from __future__ import annotations

AUTOPILOT: dict[str, tuple[tuple[str, str], ...]] = {
    "kernels/plans.py": (
        ("met = rate_a * held_b + rate_b * held_a", "met = rate_a * held_b"),
        ("if below < cost[mask] and (crossing or links[mask] > links[a] + links[b]):", "if below < cost[mask]:"),
        ("        part = (rest - 1) & rest\n        while", "        part = 0\n        while"),
        (
            "            if part == 0:\n                break\n            part = (part - 1)",
            "            break\n            part = (part - 1)",
        ),
        ("for k in range(i, j):", "for k in range(i, i + 1):"),
    ),
    "kernels/sampled.py": (
        ("heads[slot] = i\n", "pass\n"),
        ("            pairs += right[at] == left[i]\n", "            pairs += 1\n"),
        ("            if right[at] == left[i]:\n", "            if True:\n"),
    ),
    "autopilot/join_sample.py": (
        ("(ts >= cut - recent_ms)", "(ts > cut)"),
        ("        return every - old", "        return every"),
        ("            rows = rows[:, good]\n", ""),
        ("/ m**2))", "/ m**3))"),
    ),
    "autopilot/evidence.py": (
        ("since = sampled.cut - recent_ms", "since = sampled.cut - 4 * recent_ms"),
        ("living = rate * source.window.size / 1000.0", "living = living"),
        ("for k in known), living=_living(known, (alias,))", "for k in known)"),
        ("log += weight * math.exp(share.log) / every", "log += math.exp(share.log) / len(known)"),
        ("if len(aliases) < 3 or node is plan or aliases in joint:", "if len(aliases) < 3 or aliases in joint:"),
    ),
    "autopilot/sizes.py": (
        ("sets.columns(some)], axis=1) - 1, 0)", "sets.columns(some)], axis=1), 0)"),
        ("        share[chosen] += correction\n", ""),
    ),
    "autopilot/search.py": (
        ("return running if cost >= cost_now else found", "return found"),
        ("return running if cost >= cost_now else found", "return running"),
    ),
    "autopilot/rule.py": (
        ("difference = prices.running - prices.best", "difference = prices.best - prices.running"),
        ("difference > terms.errors * prices.error and", "True and"),
        ("and difference > terms.least * prices.running", "and difference > 0"),
        ("if is_better(prices, terms) else 0.0", "if is_better(prices, terms) else account.excess"),
        ("excess=excess,", "excess=account.excess,"),
        ("lost_s * (1.0 - prices.best / prices.running)", "lost_s"),
        ("    if account.excess < needed:", "    if False:"),
        ("    back = prices.best <= prices.first < prices.running", "    back = False"),
        ("    back = prices.best <= prices.first < prices.running", "    back = True"),
        ("replace(account, excess=0.0, spent=account.spent + cost_s)", "replace(account, excess=0.0)"),
        ("saved=account.saved + saving * account.unsettled", "saved=account.saved"),
        ("saving = min(before.first", "saving = max(before.first"),
        (", unsettled=0.0)", ")"),
    ),
    "autopilot/autopilot.py": (
        ("        if changing:\n            return\n", ""),
        ("plans[int(np.argmin(", "plans[int(np.argmax("),
        ("    if len(known) > 1:\n", "    if False:\n"),
        ("np.sum([prices.of(one.evidence) for one in known], axis=0)", "prices.of(known[0].evidence)"),
        (", *(one.statistics for one in self._weighed[1:] if one.statistics)]", "]"),
        ("return (sum(work.selected) - self._arrived) / rate", "return (work.cut - 0) / 1000"),
        ("if self._knows_all(own, others, measured=measured):", "if True:"),
        ("measured or not _same([own, *others], self._weighed)", "measured"),
        ("        if made and advice.exceeds:", "        if False:"),
        ('        if made and self._mode == "advise":', "        if False:"),
    ),
    "autopilot/survey.py": (
        ("            self._drifted = self._watch.drifted(work)\n", "            self._drifted = False\n"),
        ("self.found = Surveyed(at, evidence, best", "self.found = Surveyed(at, evidence, engine.plan"),
        ("raw_s - self._raw_s < LOOK_AFTER_S", "False"),
        ("            if same_tree(found, best):\n                break\n", "            break\n"),
    ),
    "autopilot/learning.py": (
        ("self._squares = KEPT * self._squares", "self._squares = self._squares"),
        ("+ PRIOR)", "+ 0.0)"),
        ("np.clip(found, 1 / BOUND, BOUND)", "found"),
        ("now.busy_s <= before.busy_s", "False"),
        ("MAKE_S * matches, SCAN_S * matches", "MAKE_S, SCAN_S"),
    ),
    "autopilot/drift.py": (
        ("found = found or difference > max(CLEARLY, ERRORS * error)", "found = False"),
        ("max(CLEARLY, ERRORS * error)", "0.0"),
    ),
    "autopilot/pace.py": (
        ("max(self._to_measure_s - self._measure_s, 0.0)", "self._to_measure_s"),
        ("self._beyond_s += max(seconds - UNUSUAL * usual * passed, 0.0)", "self._beyond_s += seconds"),
        ("self._beyond_s += max(seconds - UNUSUAL * usual * passed, 0.0)", "pass"),
        ("at - self._looked < self.apart_ms", "False"),
        ("self._to_measure_s = FIRST * measure_s", "self._to_measure_s = 9 * measure_s"),
        ("        self.lost_s = self._beyond_s\n", ""),
        ("apart_ms = self._window_ms // 2 if drifted", "apart_ms = self._window_ms * 99 if drifted"),
        ("            if lost or due:\n                self._to_measure_s += self._measure_s\n", ""),
        ("            if due:\n                self._follow_up = None\n", ""),
        ("at + int(FOLLOW_UP_WINDOWS * self._window_ms)", "at"),
    ),
}

AUTOPILOT_TESTS: dict[str, list[str]] = {
    "kernels/plans.py": ["autopilot/test_search.py"],
    "kernels/sampled.py": ["autopilot/test_join_sample.py"],
    "autopilot/join_sample.py": ["autopilot/test_join_sample.py"],
    "autopilot/evidence.py": ["autopilot/test_join_sample.py", "autopilot/test_survey.py"],
    "autopilot/sizes.py": ["autopilot/test_search.py"],
    "autopilot/search.py": ["autopilot/test_search.py"],
    "autopilot/rule.py": ["autopilot/test_rule.py"],
    "autopilot/autopilot.py": ["autopilot/test_autopilot.py", "autopilot/test_survey.py"],
    "autopilot/survey.py": ["autopilot/test_autopilot.py", "autopilot/test_survey.py", "autopilot/test_drift.py"],
    "autopilot/learning.py": ["autopilot/test_learning.py"],
    "autopilot/drift.py": ["autopilot/test_drift.py"],
    "autopilot/pace.py": ["autopilot/test_drift.py"],
}
"""Which tests see a file's errors first."""
