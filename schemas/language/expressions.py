"""Binds expressions: resolves columns, checks types, folds literals.

Type rules:
- Numbers (BIGINT, DOUBLE) mix freely; a DOUBLE makes the result DOUBLE.
- A TIMESTAMP compares with TIMESTAMP and BIGINT (milliseconds), and with a string literal, which is read as
  ISO 8601. TIMESTAMP +- BIGINT is TIMESTAMP, TIMESTAMP - TIMESTAMP is BIGINT; `5 MINUTES` is a BIGINT.
- STRING compares with STRING, BOOLEAN with BOOLEAN by = and <> only.
- NULL is a value only in IN lists and COALESCE: anywhere else the result would always be unknown.

`alias._ts` is the tuple's event time, a TIMESTAMP, for every stream; no declared column has that name. The rows of a
table have no event time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lark import Token, Tree

from schemas.durations import duration_ms, parse_duration
from schemas.errors import QueryError, UsageError
from schemas.language.functions import AGGREGATES, FUNCTIONS, JSON_TYPES, JSON_VALUE, NUMBERS
from schemas.language.query_text import Node, QueryText, did_you_mean, identifier, shortened, tree, unquoted
from schemas.paths import parse_json_path
from schemas.query import (
    ORDINAL,
    And,
    Arithmetic,
    Call,
    ColumnRef,
    Compare,
    Expr,
    InList,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Source,
    Stream,
    Type,
    Unnest,
    type_of,
)
from schemas.timestamps import parse_iso

EVENT_TIME = "_ts"
"""The pseudo-column of event time, and the key of a result's timestamp."""

MOST_LIKE = 1_000
"""Arrow refuses patterns that are far longer when the first tuple comes."""

MAX_NESTING = 100

_MAX_BIGINT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Scope:
    """The names that expressions may use.

    Attributes:
        sources: by alias, in FROM order.
        ts_is_event_time: whether `alias.ts` is the event time of a stream without a column `ts` (in WINDOW).
    """

    text: QueryText
    sources: Mapping[str, Source]
    ts_is_event_time: bool = False

    def for_window_condition(self) -> Scope:
        """The scope of a WINDOW condition."""
        return replace(self, ts_is_event_time=True)

    # --- Columns -----------------------------------------------------------------------------------

    def column(self, node: Tree[Token]) -> ColumnRef:
        """A column reference: `alias.name`, or `name` where one source has it."""
        first, second = node.children
        if second is not None:
            if (of_elements := self.elements(first)) is not None:
                return self._of_elements(*of_elements, second)
            source = self.source(first)
            found = self._column_of(source, identifier(second))
            if found is None:
                raise self._no_column(source, second)
            return found
        name = identifier(first)
        candidates = {s.alias: c for s in self.sources.values() if (c := self._column_of(s, name)) is not None}
        for source, one in ((s, one) for s in self.sources.values() for one in s.unnests):
            if (field := one.column(name)) is not None:
                candidates[one.alias] = ColumnRef(source.alias, field.name, field.type)
        if len(candidates) == 1:
            return next(iter(candidates.values()))
        if candidates:
            written = [f"{alias}.{name}" for alias in candidates]
            raise self.text.error(f"column {name!r} is ambiguous; write {_either(written)}", node)
        if name in self.sources:
            such = next(iter(self.sources[name].stream.fields)).name if self.sources[name].is_static else EVENT_TIME
            raise self.text.error(f"{name!r} is an alias; write a column of it, such as {name}.{such}", node)
        names = [f.name for s in self.sources.values() for f in s.stream.fields]
        raise self.text.error(f"unknown column {name!r}{did_you_mean(name, [*names, EVENT_TIME])}", node)

    def source(self, token: Node) -> Source:
        """The source whose alias the token names."""
        alias = identifier(token)
        source = self.sources.get(alias)
        if source is not None:
            return source
        renamed = [a for a, s in self.sources.items() if s.stream.name == alias]
        if renamed:
            stream = self.sources[renamed[0]].stream
            raise self.text.error(f"{stream} is read here as {_either(renamed)}; use the alias", token)
        known = ", ".join(list(self.sources)[:10]) + (", ..." if len(self.sources) > 10 else "")
        suggestion = did_you_mean(alias, self.sources)
        raise self.text.error(f"unknown alias {alias!r}{suggestion or f'; the query has {known}'}", token)

    def elements(self, token: Node) -> tuple[Source, Unnest] | None:
        """The source and its array whose elements have the alias that the token names; None if there is none."""
        alias = identifier(token)
        found = ((source, one) for source in self.sources.values() for one in source.unnests)
        return next(((source, one) for source, one in found if one.alias == alias), None)

    def _of_elements(self, source: Source, unnest: Unnest, token: Node) -> ColumnRef:
        field = unnest.column(identifier(token))
        if field is None:
            names = unnest.names
            hint = did_you_mean(identifier(token), (*names, ORDINAL)) or f"; it has {shortened(', '.join(names))}"
            raise self.text.error(f"{unnest.alias} has no column {identifier(token)!r}{hint}", token)
        return ColumnRef(source.alias, field.name, field.type)

    def _column_of(self, source: Source, name: str) -> ColumnRef | None:
        declared = source.stream.field(name)
        if declared is not None:
            return ColumnRef(source.alias, name, declared.type)
        if not source.is_static and (name == EVENT_TIME or (name == "ts" and self.ts_is_event_time)):
            return ColumnRef(source.alias, EVENT_TIME, Type.TIMESTAMP)
        return None

    def _no_column(self, source: Source, token: Node) -> QueryError:
        name = identifier(token)
        names = [f.name for f in source.stream.fields]
        listed = shortened(", ".join(names))
        if isinstance(source.stream, Stream) and any(array.name == name for array in source.stream.arrays):
            how = f"CROSS JOIN UNNEST({source.alias}.{name}) AS E after {source.alias} in FROM gives its elements"
            return self.text.error(f"{source.alias}.{name} is an array, and no value; {how}", token)
        if source.is_static and name == EVENT_TIME:
            return self.text.error(f"the rows of {source.stream} have no event time; it has {listed}", token)
        suggestion = did_you_mean(name, names if source.is_static else [*names, EVENT_TIME])
        return self.text.error(f"{source.stream} has no column {name!r}{suggestion or f'; it has {listed}'}", token)

    # --- Conditions --------------------------------------------------------------------------------

    def conjuncts(self, node: Node) -> tuple[Expr, ...]:
        """The top-level conjuncts of a condition, in text order."""
        condition = self.condition(node, 0)
        return condition.terms if isinstance(condition, And) else (condition,)

    def condition(self, node: Node, depth: int) -> Expr:
        """A BOOLEAN expression."""
        bound = self.bind(node, depth)
        if type_of(bound) is not Type.BOOLEAN:
            raise self.text.error(
                f"expected a condition; {self.text.shown(node)} is {_described(bound)}: write a comparison",
                node,
            )
        return bound

    # --- Expressions -------------------------------------------------------------------------------

    def bind(self, piece: Node, depth: int = 0) -> Expr:
        """Bind a piece of the tree. `depth` is how deep it is in the whole expression.

        Raises:
            QueryError: an unknown name, or types that do not fit; the error underlines the piece.
        """
        node = tree(piece)
        if depth > MAX_NESTING:
            raise self.text.error(f"this expression nests deeper than {MAX_NESTING} levels; write it flatter", node)
        inner = depth + 1
        parts = node.children
        match node.data:
            case "column":
                return self.column(node)
            case "disjunction":
                return Or(tuple(self.condition(part, inner) for part in _nodes(parts)))
            case "conjunction":
                terms: list[Expr] = []
                for part in _nodes(parts):
                    term = self.condition(part, inner)
                    terms += term.terms if isinstance(term, And) else (term,)
                return And(tuple(terms))
            case "not_":
                return Not(self.condition(parts[-1], inner))
            case "compare":
                return self._compare(node, inner)
            case "between":
                return self._between(node, inner)
            case "in_":
                return self._in_list(node, inner)
            case "like":
                return self._like(node, inner)
            case "is_null":
                return IsNull(self.value(parts[0], inner), parts[1] is not None)
            case "arithmetic":
                return self._arithmetic(node, inner)
            case "plus":
                return self._number(parts[1], inner, "+")
            case "minus":
                return self._minus(node, inner)
            case "call" | "call_returning":
                return self._call(node, inner)
            case "call_star":
                raise self._unknown_function(parts[0])
            case _:
                return self._literal(node)

    def value(self, node: Node, depth: int = 0) -> Expr:
        """Bind an expression that must not be the literal NULL."""
        bound = self.bind(node, depth)
        if bound == _NULL:
            raise self.text.error(
                "with NULL here the result is always unknown; test with IS NULL or IS NOT NULL "
                "(NULL itself is accepted in IN lists and in COALESCE)",
                node,
            )
        return bound

    def _number(self, node: Node, depth: int, op: str) -> Expr:
        bound = self.value(node, depth)
        if type_of(bound) not in NUMBERS:
            raise self.text.error(
                f"{op} takes a number (BIGINT or DOUBLE), but {self.text.shown(node)} is {_described(bound)}",
                node,
            )
        return bound

    # --- Comparisons -------------------------------------------------------------------------------

    def _compare(self, node: Tree[Token], depth: int) -> Expr:
        left_node, op_token, right_node = node.children
        left, right = self.value(left_node, depth), self.value(right_node, depth)
        return self._comparison(str(op_token), (left, left_node), (right, right_node), node)

    def _comparison(self, op: str, left: tuple[Expr, Node], right: tuple[Expr, Node], place: Node) -> Compare:
        """`left op right`; a string literal compared with a TIMESTAMP is read as ISO 8601."""
        a, b = self._matched(left, right, place)
        if type_of(a) is Type.BOOLEAN and op not in ("=", "<>", "!="):
            raise self.text.error(f"BOOLEAN values compare with = and <> only, not {op}", place)
        match op:
            case "=" | "<" | "<=" | ">" | ">=" | "<>":
                return Compare(op, a, b)
            case _:
                return Compare("<>", a, b)

    def _matched(self, left: tuple[Expr, Node], right: tuple[Expr, Node], place: Node) -> tuple[Expr, Expr]:
        """Both operands of a comparison, of comparable types."""
        a, b = left[0], right[0]
        if type_of(a) is Type.TIMESTAMP:
            b = self._as_timestamp(b, right[1])
        elif type_of(b) is Type.TIMESTAMP:
            a = self._as_timestamp(a, left[1])
        types = {type_of(a), type_of(b)}
        if len(types) == 1 or types == NUMBERS or types == {Type.TIMESTAMP, Type.BIGINT}:
            return a, b
        hint = ""
        if types == {Type.STRING, Type.BIGINT} and any(
            isinstance(e, Literal) and e.type is Type.STRING for e in (a, b)
        ):
            hint = "; numbers are written without quotes, and a time as TIMESTAMP '2013-01-01T00:00:00Z'"
        raise self.text.error(f"cannot compare {_named(left, self.text)} with {_named(right, self.text)}{hint}", place)

    def _as_timestamp(self, expr: Expr, node: Node) -> Expr:
        if isinstance(expr, Literal) and isinstance(expr.value, str):
            return Literal(self._timestamp_ms(expr.value, node), Type.TIMESTAMP)
        return expr

    def _between(self, node: Tree[Token], depth: int) -> Expr:
        operand_node, negated, low_node, high_node = node.children
        operand = (self.value(operand_node, depth), operand_node)
        low = (self.value(low_node, depth), low_node)
        high = (self.value(high_node, depth), high_node)
        if negated is not None:
            outside = (self._comparison("<", operand, low, node), self._comparison(">", operand, high, node))
            return Or(outside)
        return And((self._comparison(">=", operand, low, node), self._comparison("<=", operand, high, node)))

    def _in_list(self, node: Tree[Token], depth: int) -> Expr:
        operand_node, negated, *item_nodes = node.children
        operand = self.value(operand_node, depth)
        items: list[Literal] = []
        for item_node in _nodes(item_nodes):
            item = self.bind(item_node, depth)
            if not isinstance(item, Literal):
                raise self.text.error("an IN list takes literals; write other values as comparisons with OR", item_node)
            if item.value is None:
                items.append(Literal(None, type_of(operand)))
                continue
            same, matched = self._matched((operand, operand_node), (item, item_node), item_node)
            if same != operand or not isinstance(matched, Literal):
                # 'text' IN (TIMESTAMP ...): reading the operand as a time would change the meaning of other items.
                raise self.text.error(f"cannot compare {_described(operand)} with {item.type}", item_node)
            items.append(matched)
        return InList(operand, tuple(items), negated is not None)

    def _like(self, node: Tree[Token], depth: int) -> Expr:
        operand_node, negated, pattern_node = node.children
        operand = self.value(operand_node, depth)
        if type_of(operand) is not Type.STRING:
            raise self.text.error(
                f"LIKE takes a STRING, but {self.text.shown(operand_node)} is {_described(operand)}",
                operand_node,
            )
        pattern = self.bind(pattern_node, depth)
        if not isinstance(pattern, Literal) or not isinstance(pattern.value, str):
            raise self.text.error("LIKE takes a pattern in quotes, such as 'room-%'", pattern_node)
        if re.search(r"(?<!\\)(?:\\\\)*\\\Z", pattern.value):
            raise self.text.error(
                "this pattern ends in a lone backslash; a backslash itself is written \\\\", pattern_node
            )
        if len(pattern.value) > MOST_LIKE:
            raise self.text.error(f"a pattern has at most {MOST_LIKE:,} characters", pattern_node)
        return Like(operand, pattern.value, negated is not None)

    # --- Arithmetic and functions ------------------------------------------------------------------

    def _arithmetic(self, node: Tree[Token], depth: int) -> Expr:
        left_node, op_token, right_node = node.children
        left, right = self.value(left_node, depth), self.value(right_node, depth)
        a, b = type_of(left), type_of(right)
        result: Type | None = None
        if {a, b} <= NUMBERS:
            result = Type.BIGINT if a is b is Type.BIGINT else Type.DOUBLE
        elif op_token == "-" and a is b is Type.TIMESTAMP:
            result = Type.BIGINT
        elif (op_token in ("+", "-") and (a, b) == (Type.TIMESTAMP, Type.BIGINT)) or (
            op_token == "+" and (a, b) == (Type.BIGINT, Type.TIMESTAMP)
        ):
            result = Type.TIMESTAMP
        if result is None:
            hint = ""
            if Type.TIMESTAMP in (a, b):
                hint = "; times take TIMESTAMP +- milliseconds (such as 5 MINUTES) and TIMESTAMP - TIMESTAMP"
            elif op_token == "+" and a is b is Type.STRING:
                hint = "; strings are joined with CONCAT(a, b)"
            raise self.text.error(
                f"cannot compute {_named((left, left_node), self.text)} {op_token} "
                f"{_named((right, right_node), self.text)}{hint}",
                node,
            )
        match str(op_token):
            case "+" | "-" | "*" | "/" as op:
                return Arithmetic(op, left, right, result)
            case _:
                return Arithmetic("%", left, right, result)

    def _minus(self, node: Tree[Token], depth: int) -> Expr:
        operand_node = node.children[1]
        if isinstance(operand_node, Tree) and operand_node.data == "integer":
            return Literal(self._integer(f"-{operand_node.children[0]}", node), Type.BIGINT)
        operand = self._number(operand_node, depth, "-")
        if isinstance(operand, Literal) and isinstance(operand.value, float):
            return Literal(-operand.value, Type.DOUBLE)
        if isinstance(operand, Literal) and isinstance(operand.value, int) and operand.value >= -_MAX_BIGINT:
            return Literal(-operand.value, Type.BIGINT)
        return Negate(operand, type_of(operand))

    def _call(self, node: Tree[Token], depth: int) -> Expr:
        name_token, *arg_nodes = node.children
        name = str(name_token).upper()
        signature = FUNCTIONS.get(name)
        returning: list[Node] = []
        if node.data == "call_returning":
            *arg_nodes, returning_word, type_token = arg_nodes
            returning = [type_token]
            if signature is not None and name != JSON_VALUE:
                raise self.text.error(f"RETURNING goes with {JSON_VALUE} only; {signature.form}", returning_word)
        if signature is None:
            raise self._unknown_function(name_token)
        if len(arg_nodes) < signature.least or (signature.most is not None and len(arg_nodes) > signature.most):
            raise self.text.error(f"{signature.form} does not take {len(arg_nodes)} arguments", node)
        args = [self.bind(arg, depth) if name == "COALESCE" else self.value(arg, depth) for arg in _nodes(arg_nodes)]
        typed = [type_of(arg) for arg in args if arg != _NULL]
        if not typed:
            raise self.text.error("COALESCE needs a value that is not NULL", node)
        result = signature.result(typed)
        if result is None:
            given = ", ".join("NULL" if arg == _NULL else _described(arg) for arg in args)
            raise self.text.error(f"expected {signature.form}; got {name}({given})", node)
        if name == JSON_VALUE:
            self._check_path(args[1], arg_nodes[1])
            result = self._returned(returning[0]) if returning else JSON_TYPES[0]
        # A NULL takes the type of the other arguments.
        return Call(name, tuple(Literal(None, typed[0]) if arg == _NULL else arg for arg in args), result)

    def _check_path(self, path: Expr, node: Node) -> None:
        """Refuse a path of JSON_VALUE that is no literal, or wrong."""
        if not isinstance(path, Literal) or not isinstance(path.value, str):
            raise self.text.error("JSON_VALUE takes a path in quotes, such as '$.customer.city'", node)
        try:
            parse_json_path(path.value)
        except UsageError as error:
            raise self.text.error(str(error), node) from None

    def _returned(self, token: Node) -> Type:
        written = str(token).upper()
        if written not in JSON_TYPES:
            hint = did_you_mean(written, JSON_TYPES) or f"; it may be {', '.join(JSON_TYPES)}"
            raise self.text.error(f"{JSON_VALUE} returns no {written}{hint}", token)
        return Type(written)

    def _unknown_function(self, token: Node) -> QueryError:
        name = str(token).upper()
        accepted = ", ".join(FUNCTIONS)
        if name in AGGREGATES:
            return self.text.error(f"{name} is an aggregate, which belongs in the SELECT list", token)
        return self.text.error(
            f"unknown function {str(token)!r}{did_you_mean(name, FUNCTIONS) or f'; accepted: {accepted}'}",
            token,
        )

    # --- Literals ----------------------------------------------------------------------------------

    def _literal(self, node: Tree[Token]) -> Literal:
        first = str(node.children[0])
        match node.data:
            case "integer":
                return Literal(self._integer(first, node), Type.BIGINT)
            case "decimal":
                value = float(first)
                if not math.isfinite(value):
                    raise self.text.error(f"{shortened(first)} is beyond the range of DOUBLE", node)
                return Literal(value, Type.DOUBLE)
            case "string":
                return Literal(unquoted(first), Type.STRING)
            case "true" | "false":
                return Literal(node.data == "true", Type.BOOLEAN)
            case "timestamp":
                return Literal(self._timestamp_ms(unquoted(str(node.children[1])), node.children[1]), Type.TIMESTAMP)
            case "duration" | "interval":
                return Literal(self._duration(node), Type.BIGINT)
            case _:
                return _NULL

    def _integer(self, digits: str, node: Node) -> int:
        # The length first: Python refuses to convert thousands of digits, zeros in front included.
        significant = digits.lstrip("-").lstrip("0") or "0"
        if len(significant) <= 19:
            value = -int(significant) if digits.startswith("-") else int(significant)
            if -_MAX_BIGINT - 1 <= value <= _MAX_BIGINT:
                return value
        raise self.text.error(
            f"{shortened(digits)} is not a BIGINT, which reaches from {-_MAX_BIGINT - 1} to {_MAX_BIGINT}",
            node,
        )

    def _duration(self, node: Tree[Token]) -> int:
        try:
            if node.data == "duration":
                return duration_ms(str(node.children[0]), str(node.children[1]))
            text = unquoted(str(node.children[1]))
            return parse_duration(f"{text} {node.children[2]}" if node.children[2] is not None else text)
        except UsageError as error:
            raise self.text.error(str(error), node) from None

    def _timestamp_ms(self, text: str, node: Node) -> int:
        try:
            return parse_iso(text)
        except ValueError as error:
            raise self.text.error(f"not a TIMESTAMP: {error}", node) from None


_NULL = Literal(None, Type.BOOLEAN)
"""The literal NULL, before it takes the type that its context requires."""


def _nodes(parts: Sequence[Node]) -> Sequence[Node]:
    return [part for part in parts if part is not None]


def _described(expr: Expr) -> str:
    return f"{type_of(expr)}"


def _named(operand: tuple[Expr, Node], text: QueryText) -> str:
    """'T.room (STRING)'."""
    return f"{text.shown(operand[1])} ({_described(operand[0])})"


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
