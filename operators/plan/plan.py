"""Plans: binary trees over the aliases of a query, written `((A B) C)`. `parse_plan` reads that text.

A pair of parentheses is a join of its two inputs; the first is the left side. Three or more inputs, as in
`((A B C) D)`, are one multi-way join (`operators.juggler`); the tree has it as a left-deep join with a mark. In a query
with EXCEPT a join is a set difference, first input minus second. The tree contains no predicates:
`operators.plan.predicates` places those, by the same rules for every tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from schemas.errors import QueryError, UsageError
from schemas.query import Query


@dataclass(frozen=True, slots=True)
class Leaf:
    """A source of the query."""

    alias: str

    @property
    def aliases(self) -> tuple[str, ...]:
        """The alias, as a tuple of one."""
        return (self.alias,)

    def __str__(self) -> str:
        return self.alias if _BARE.fullmatch(self.alias) else '"' + self.alias.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class Join:
    """A join of two sub-plans. Two joins are equal when their trees are equal, sides included.

    Attributes:
        multiway: this join and all joins below it are one multi-way operator.
        aliases: the aliases below, left to right.
    """

    left: Plan
    right: Plan
    multiway: bool = False
    aliases: tuple[str, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "aliases", (*self.left.aliases, *self.right.aliases))

    def __str__(self) -> str:
        if self.multiway:
            return "(" + " ".join(str(Leaf(alias)) for alias in self.aliases) + ")"
        return f"({self.left} {self.right})"


Plan = Leaf | Join


def postorder(plan: Plan) -> Iterator[Plan]:
    """Yield all nodes, children before parents, left before right."""
    left, found = [plan], list[Plan]()
    while left:
        node = left.pop()
        found.append(node)
        if isinstance(node, Join):
            left += [node.left, node.right]
    return reversed(found)


def left_deep(aliases: tuple[str, ...] | list[str]) -> Plan:
    """Return the left-deep plan over aliases in the given order."""
    plan: Plan = Leaf(aliases[0])
    for alias in aliases[1:]:
        plan = Join(plan, Leaf(alias))
    return plan


def multiway_join(plan: Plan) -> Plan:
    """Return one multi-way operator over the plan's aliases."""
    whole = left_deep(plan.aliases)
    return Join(whole.left, whole.right, multiway=True) if isinstance(whole, Join) else whole


def check_plan(plan: Plan, query: Query) -> None:
    """Refuse a plan that cannot execute the query.

    Raises:
        UsageError: the query is a set difference and the plan does not subtract from its first source.
    """
    why = _why_unfit(plan, query)
    if why is not None:
        raise UsageError(f"plan {plan}: {why}")


def _why_unfit(plan: Plan, query: Query) -> str | None:
    """Return why a plan cannot execute the query; None where it can."""
    aliases = [source.alias for source in query.sources]
    if not query.subtracted or (plan == left_deep(plan.aliases) and plan.aliases[0] == aliases[0]):
        return None
    return (
        f"EXCEPT removes from {aliases[0]} what matches in one stream after the other, so a plan begins with "
        f"{aliases[0]} and is left-deep, such as {left_deep(aliases)}"
    )


_BARE = re.compile(r'[^\s()"]+')
_TOKEN = re.compile(r'([()])|"((?:[^"]|"")+)"|([^\s()"]+)')


def aliases_in(text: str) -> list[str]:
    """Return the aliases in a plan's text, from left to right."""
    return [quoted.replace('""', '"') or bare for _, quoted, bare in _TOKEN.findall(text) if quoted or bare]


def parse_plan(text: str, query: Query, *, multiway: bool = False) -> Plan:
    """Parse the plan written in `text`, over exactly the aliases of `query`.

    Args:
        multiway: accept multi-way joins too.

    Raises:
        QueryError: bad parentheses, an unknown, repeated or missing alias, or a plan that cannot execute the query;
            with a caret into `text`.
    """
    known = [source.alias for source in query.sources]
    stack: list[list[Plan]] = [[]]
    opened: list[int] = []
    seen: set[str] = set()

    # On one line, so that a caret below points to the right column.
    text = re.sub(r"\s", " ", text)

    def fail(message: str, at: int, length: int = 1) -> QueryError:
        return QueryError(f"plan: {message}", text=text, line=1, column=at + 1, length=length)

    pos = 0
    while pos < len(text):
        if text[pos] == " ":
            pos += 1
            continue
        match = _TOKEN.match(text, pos)
        if match is None:
            raise fail(f"unexpected {text[pos]!r}; a plan looks like ((A B) C)", pos)
        at, pos = pos, match.end()
        token = match.group(1)
        if token == "(":
            stack.append([])
            opened.append(at)
        elif token == ")":
            if not opened:
                raise fail("')' without '('", at)
            inputs = stack.pop()
            start = opened.pop()
            if len(inputs) > 2 and multiway:
                inner = next((node for node in inputs if isinstance(node, Join)), None)
                if inner is not None:
                    raise fail(f"a multi-way join joins sources only, not {inner}", start, pos - start)
                stack[-1].append(multiway_join(left_deep([alias for node in inputs for alias in node.aliases])))
                continue
            if len(inputs) != 2:
                more = ", and more only with --executor juggler" if len(inputs) > 2 else ""
                raise fail(
                    f"a join has two inputs, got {len(inputs)}{more}; a plan looks like ((A B) C)",
                    start,
                    pos - start,
                )
            stack[-1].append(Join(inputs[0], inputs[1]))
        else:
            alias = match.group(3) or match.group(2).replace('""', '"')
            if alias not in known:
                raise fail(f"unknown alias {alias!r}; the query has {', '.join(known)}", at, pos - at)
            if alias in seen:
                raise fail(f"alias {alias!r} appears twice", at, pos - at)
            seen.add(alias)
            stack[-1].append(Leaf(alias))
    if opened:
        raise fail("'(' is never closed", opened[-1])
    if len(stack[0]) != 1:
        raise fail("a plan is one join of all aliases, like ((A B) C)", 0, max(len(text), 1))
    missing = [alias for alias in known if alias not in seen]
    if missing:
        raise fail(f"missing {', '.join(missing)}", 0, max(len(text), 1))
    why = _why_unfit(stack[0][0], query)
    if why is not None:
        raise fail(why, 0, max(len(text), 1))
    return stack[0][0]
