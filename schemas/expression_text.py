"""Formats bound expressions as query text, for plans and messages."""

from __future__ import annotations

from schemas.query import (
    Aggregate,
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
    Type,
)

_STRENGTH = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2}


def text_of(expr: Expr) -> str:
    """The expression as query text; parses back to an equal expression."""
    match expr:
        case ColumnRef():
            # A column that has been looked up has the name that the query has for it: `R.rate`.
            return expr.name if "." in expr.name else f"{expr.alias}.{expr.name}"
        case Literal():
            return _literal(expr)
        case Arithmetic():
            return f"{_operand(expr.left, expr.op, False)} {expr.op} {_operand(expr.right, expr.op, True)}"
        case Negate():
            inner = text_of(expr.operand)
            return f"-({inner})" if isinstance(expr.operand, Arithmetic | Negate) else f"-{inner}"
        case Call(name="JSON_VALUE"):
            returning = "" if expr.type is Type.STRING else f" RETURNING {expr.type}"
            return f"JSON_VALUE({', '.join(text_of(arg) for arg in expr.args)}{returning})"
        case Call():
            return f"{expr.name}({', '.join(text_of(arg) for arg in expr.args)})"
        case Compare():
            return f"{text_of(expr.left)} {expr.op} {text_of(expr.right)}"
        case IsNull():
            return f"{text_of(expr.operand)} IS {'NOT ' if expr.negated else ''}NULL"
        case Like():
            return f"{text_of(expr.operand)} {'NOT ' if expr.negated else ''}LIKE {_quoted(expr.pattern)}"
        case InList():
            items = ", ".join(_literal(item) for item in expr.items)
            return f"{text_of(expr.operand)} {'NOT ' if expr.negated else ''}IN ({items})"
        case Not():
            return f"NOT ({text_of(expr.operand)})"
        case And():
            return " AND ".join(_term(term) for term in expr.terms)
        case Or():
            return " OR ".join(_term(term) for term in expr.terms)


def aggregate_text(aggregate: Aggregate) -> str:
    """The aggregate as query text."""
    return f"{aggregate.function}({'*' if aggregate.argument is None else text_of(aggregate.argument)})"


def _literal(literal: Literal) -> str:
    match literal.value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if literal.value else "FALSE"
        case str():
            return _quoted(literal.value)
        case _:
            return repr(literal.value)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _operand(expr: Expr, op: str, right: bool) -> str:
    text = text_of(expr)
    if isinstance(expr, Arithmetic):
        weaker = _STRENGTH[expr.op] < _STRENGTH[op]
        if weaker or (right and _STRENGTH[expr.op] == _STRENGTH[op]):
            return f"({text})"
    return text


def _term(expr: Expr) -> str:
    return f"({text_of(expr)})" if isinstance(expr, And | Or) else text_of(expr)
