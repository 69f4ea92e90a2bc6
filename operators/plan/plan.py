"""Plans: binary trees over the aliases of a query, written `((A B) C)`.

Juxtaposition in parentheses is a join; its first input is the left side. Three or more together, as in `((A B C) D)`,
are one multi-way join (`operators.juggler`): in the tree a left-deep join that is marked so. For a query with EXCEPT
a join is a set difference, first input minus second. The tree says nothing about predicates:
`operators.plan.predicates` places those, the same way for every tree.
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
        """The aliases below, left to right."""
        return (self.alias,)

    def __str__(self) -> str:
        return self.alias if _BARE.fullmatch(self.alias) else '"' + self.alias.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class Join:
    """A join of two sub-plans. Equal when the trees are equal, sides included.

    Attributes:
        together: this one and all joins below are one operator.
    """

    left: Plan
    right: Plan
    together: bool = False
    aliases: tuple[str, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "aliases", (*self.left.aliases, *self.right.aliases))

    def __str__(self) -> str:
        if self.together:
            return "(" + " ".join(str(Leaf(alias)) for alias in self.aliases) + ")"
        return f"({self.left} {self.right})"


Plan = Leaf | Join


def postorder(plan: Plan) -> Iterator[Plan]:
    """All nodes, children before parents, left before right."""
    if isinstance(plan, Join):
        yield from postorder(plan.left)
        yield from postorder(plan.right)
    yield plan


def left_deep(aliases: tuple[str, ...] | list[str]) -> Plan:
    """The left-deep plan over aliases in the given order."""
    plan: Plan = Leaf(aliases[0])
    for alias in aliases[1:]:
        plan = Join(plan, Leaf(alias))
    return plan


def all_together(plan: Plan) -> Plan:
    """One operator over the plan's aliases."""
    whole = left_deep(plan.aliases)
    return Join(whole.left, whole.right, together=True) if isinstance(whole, Join) else whole


def check_plan(plan: Plan, query: Query) -> None:
    """Refuse a plan that cannot execute the query.

    Raises:
        UsageError: it is a set difference and the plan does not subtract from its first source.
    """
    why = _unfit(plan, query)
    if why is not None:
        raise UsageError(f"plan {plan}: {why}")


def _unfit(plan: Plan, query: Query) -> str | None:
    aliases = [source.alias for source in query.sources]
    if not query.subtracted or (plan == left_deep(plan.aliases) and plan.aliases[0] == aliases[0]):
        return None
    return (
        f"EXCEPT takes from {aliases[0]} what matches in one stream after the other, so a plan begins with "
        f"{aliases[0]} and is left-deep, such as {left_deep(aliases)}"
    )


_BARE = re.compile(r'[^\s()"]+')
_TOKEN = re.compile(r'([()])|"((?:[^"]|"")+)"|([^\s()"]+)')


def parse_plan(text: str, query: Query, *, several: bool = False) -> Plan:
    """The plan written in `text`, over exactly the aliases of `query`.

    Args:
        several: take multi-way joins too.

    Raises:
        QueryError: bad parentheses, an unknown, repeated or missing alias; with a caret into `text`.
    """
    known = [source.alias for source in query.sources]
    stack: list[list[Plan]] = [[]]
    opened: list[int] = []
    seen: set[str] = set()

    # On one line, so that a caret under it stands right.
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
            if len(inputs) > 2 and several:
                inner = next((one for one in inputs if isinstance(one, Join)), None)
                if inner is not None:
                    raise fail(f"a multi-way join is of sources alone, not of {inner}", start, pos - start)
                stack[-1].append(all_together(left_deep([alias for one in inputs for alias in one.aliases])))
                continue
            if len(inputs) != 2:
                more = ", and more of --executor juggler alone" if len(inputs) > 2 else ""
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
    why = _unfit(stack[0][0], query)
    if why is not None:
        raise fail(why, 0, max(len(text), 1))
    return stack[0][0]
