"""Prints a query group: which queries share the operator, their inputs, and the predicates that they share.

`weir explain` calls it for a file with several queries. Predicates are shown as the operator stores them: in lists of
similar predicates, the most covering last (Juggler 3.2.1), each with the queries that have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from operators.explain.explain import aggregation_lines, looks_up
from operators.juggler.predicates.lists import ATTRIBUTE, JOIN, WINDOW, PredicateList, predicate_lists
from operators.plan.predicates import constants
from schemas.expression_text import text_of
from schemas.groups import Member, QueryGroup

SHOWN_NAMES = 6
"""Number of queries that are named next to what they share."""

_KINDS = {ATTRIBUTE: "attribute", JOIN: "join", WINDOW: "window"}


def explain_group(group: QueryGroup) -> str:
    """The operator of a group: its queries, inputs and predicate lists."""
    names = group.names
    lines = [f"operator over {', '.join(source.alias for source in group.inputs)}, shared by {_count(names)}", ""]
    for member in group.members:
        lines += _query(member)
    lines.append("")
    for source in group.inputs:
        readers = [member.name for member in group.members if source.alias in member.inputs]
        stream = source.stream.name
        shown = stream if stream == source.alias else f"{stream} {source.alias}"
        windows = " and ".join(str(window) for window in group.windows(source.alias))
        described = f"table {shown}" if source.is_static else f"input {shown} {windows}"
        lines.append(f"{described}  {named(readers, len(names))}")
        for lookup in (one for one in group.query.lookups if one.of == source.alias):
            asking = [m.name for m in group.members if lookup in m.over_inputs.lookups]
            lines.append(f"  {looks_up(lookup)}  {named(asking, len(names))}")
    lists = [listed for listed in predicate_lists(group, {}, lambda predicate: False).lists if listed.kind in _KINDS]
    total = sum(len(query.over_inputs.predicates) for query in group.members)
    kept = sum(len(listed.entries) for listed in lists if not listed.own)
    if lists:
        lines += ["", f"{kept} predicates, of {total} in the queries"]
    for kind, word in _KINDS.items():
        for listed in lists:
            if listed.kind == kind:
                lines += _list(listed, word, names)
    return "\n".join(lines)


def _query(member: Member) -> list[str]:
    """A query, and the inputs that it reads under other names."""
    query = member.query
    lines = [f"query  {query.name}" + (f"  ->  topic {query.sink}" if query.sink else "")]
    renamed = [f"{alias} is {name}" for alias, name in member.input_of().items() if alias != name]
    lines += [f"       {', '.join(renamed)}"] * bool(renamed)
    if query.aggregation is not None:
        lines += [f"       {line}" for line in aggregation_lines(query.aggregation)]
    return lines + [f"       always {text_of(predicate)}" for predicate in constants(query)]


def _list(listed: PredicateList, word: str, names: Sequence[str]) -> list[str]:
    """The predicates of a list, one per line."""
    lines = [f"{word} list" + _own(listed)]
    for entry in listed.entries:
        # In the words of the query, unless it has several similar ones; predicates of windows have no such words.
        written = [predicate for predicate, queries in listed.written.items() if queries & entry.queries]
        shown = text_of(written[0]) if len(written) == 1 else str(entry.form)
        if listed.counts and entry.form is not None:
            shown = f"[ROWS {entry.form.addend + 1}]"
        lines.append(f"  {shown}  {named([names[query] for query in sorted(entry.queries)], len(names))}")
    return lines


def _own(listed: PredicateList) -> str:
    """The source whose windows, those of the queries themselves, a list is for; empty for other lists."""
    if listed.form is not None and listed.form.y is not None and listed.counts:
        (other,) = listed.inputs - {listed.form.y.alias}
        return f", of {listed.form.y.alias} when {other} comes: the queries' own windows"
    return "" if listed.source is None else f", where {listed.source} comes last: the queries' own windows"


def named(names: Sequence[str], of: int) -> str:
    """Names in brackets, at most SHOWN_NAMES."""
    if len(names) == of > 1:
        return "(all)"
    more = f", {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return f"({', '.join(names[:SHOWN_NAMES])}{more})"


def _count(names: Iterable[str]) -> str:
    count = len(tuple(names))
    return f"{count} {'query' if count == 1 else 'queries'}"
