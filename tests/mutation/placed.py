"""Small errors in plans that are taken apart, per file: see `tests.mutation.mutants`."""

from __future__ import annotations

PLACED: dict[str, tuple[tuple[str, str], ...]] = {
    "placed/decompose.py": (
        ('predicates.append(Compare("<=", Column(names[other]', 'str(Compare("<=", Column(names[other]'),
        ("for mine, other, given in ((0, 1, inputs[0]), (1, 0, inputs[1])):", "for mine, other, given in ():"),
        ("equality = one.between(left, right)", "equality = None"),
        ("above = [join for join in self.joins if aliases < frozenset(join.aliases)]", "above = self.joins[-1:]"),
        ("return min(life_of(self.query.source(alias)) for", "return max(life_of(self.query.source(alias)) for"),
        ("if isinstance(side, Leaf) and given.edge is None:", "if False:"),
        ("chosen=selections(self.query, side.alias)", "chosen=()"),
        ("keys = self.keys[above][0 if node is above.left else 1]", "keys = self.keys[above][0]"),
        ("self.split if self.forward or self.keys[node][0] else 1 for", "self.split for"),
        ("if len(readers[stream.name]) > 1\n", "if len(readers[stream.name]) > 2\n"),
        ("channels = 1 if self.forward else producers", "channels = producers"),
        ("return len(self.aliases) > 1 and min(self.lives) < FOREVER", "return len(self.aliases) > 2"),
        ("predicates += constants(self.query)\n", "\n"),
        ("reversed(joins)", "joins"),
    ),
    "placed/route.py": (
        ("last = begin == begins[-1]", "last = True"),
        ("last = begin == begins[-1]", "last = False"),
        ("range(0, max(len(batch), 1), step)", "range(0, len(batch), step)"),
        ("if edge.chosen and len(results):", "if False:"),
        ("np.minimum.reduce(ends)", "np.maximum.reduce(ends)"),
        ("np.uint64(edge.partitions)", "np.uint64(len(edge.aliases) + 1)"),
        ("return found.take(order_ties(", "return (lambda _: found)(order_ties("),
        ("offsets + (np.int64(partition) << np.int64(_POSITION_BITS))", "offsets"),
        ("channel = 0 if edge.forward else self._task", "channel = 0"),
    ),
    "placed/history.py": (
        ("key=lambda stretch: stretch.after)", "key=lambda stretch: stretch.before)"),
        ("_Stretch(a.offset, a.before, b.after) for a, b", "_Stretch(b.offset, a.before, b.after) for a, b"),
        ("self._stretches[first].before)", "self._stretches[first].after)"),
        ("del self._stretches[: self._first(horizon_ms)]", "del self._stretches[: self._first(horizon_ms) + 1]"),
    ),
    "placed/channels.py": (
        ("if block.watermark <= self._clocks[channel]:", "if False:"),
        ("if block.watermark <= self._clocks[channel]:", "if block.watermark <= max(self._clocks):"),
        ("engine.set_clock(self.stream, channel, block.watermark)", "pass"),
        ("            self._clocks[channel] = block.watermark\n", ""),
        ("        if block.last:\n", "        if True:\n"),
        ("if not block.channel < self.edge.channels:", "if False:"),
    ),
}
