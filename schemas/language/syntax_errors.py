"""Explains in words what is wrong with a text that the grammar does not accept.

The position and the accepted terminals come from Lark. This module turns them into a sentence: it names SQL that
this version of the language leaves out, it turns terminals into words ("a window such as [RANGE 5 MINUTES]"), and it
suggests the right word for a misspelt keyword.
"""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Any

from lark import Lark, Token, UnexpectedInput

from schemas.errors import QueryError
from schemas.language.query_text import QueryText, nearest, shortened

# The text cut roughly into words, for messages only; the grammar's own lexer depends on the parser's state.
_WORD = re.compile(
    r"""(?P<skip>[\s\ufeff]+|--[^\n]*|/\*[\s\S]*?\*/)
      | '[^']*(?:''[^']*)*' | "[^"]*(?:""[^"]*)*"
      | (?P<unclosed>/\*|['"])
      | (?P<name>[^\W\d]\w*) | [0-9.]*[0-9]\w* | <=|>=|<>|!=|==|\|\||&&|:: | .""",
    re.VERBOSE | re.DOTALL,
)
_UNCLOSED = {
    "/*": "this comment is never closed; end it with */",
    "'": "this string is never closed; end it with ' (a quote inside is written '')",
    '"': 'this name is never closed; end it with " (a quote inside is written "")',
}

_CLAUSES = "WHERE, WINDOW, MAXWINDOW, PARTITION BY, GROUP BY, EMIT EVERY and EXCEPT after FROM"
_LEFT_OUT = {
    "VIEW": ("CREATE VIEW", "CREATE STREAM and CREATE TABLE"),
    "UNION": ("UNION", "one SELECT per statement"),
    "INTERSECT": ("INTERSECT", "one SELECT per statement"),
    "HAVING": ("HAVING", _CLAUSES),
    "ORDER": ("ORDER BY", f"{_CLAUSES}; results come in timestamp order"),
    "LIMIT": ("LIMIT", _CLAUSES),
    "OFFSET": ("OFFSET", _CLAUSES),
    "RIGHT": ("RIGHT JOIN", "[INNER] JOIN ... ON and ','"),
    "FULL": ("FULL JOIN", "[INNER] JOIN ... ON and ','"),
    "OUTER": ("OUTER JOIN", "[INNER] JOIN ... ON and ','"),
    "CROSS": ("CROSS JOIN", "[INNER] JOIN ... ON and ','"),
    "NATURAL": ("NATURAL JOIN", "[INNER] JOIN ... ON and ','"),
    "USING": ("JOIN ... USING", "[INNER] JOIN ... ON a.x = b.x"),
    "OVER": ("OVER", "scalar functions and arithmetic"),
    "DISTINCT": ("DISTINCT", "SELECT with a list of expressions"),
    "CASE": ("CASE", "scalar functions such as COALESCE"),
    "CAST": ("CAST", "columns with the types that CREATE STREAM declares"),
    "DROP": ("DROP", "CREATE STREAM, CREATE TABLE, SELECT and INSERT INTO"),
    "DELETE": ("DELETE", "CREATE STREAM, CREATE TABLE, SELECT and INSERT INTO"),
    "UPDATE": ("UPDATE", "CREATE STREAM, CREATE TABLE, SELECT and INSERT INTO"),
    "VALUES": ("INSERT INTO ... VALUES", "INSERT INTO 'topic' SELECT ..."),
}
_INSTEAD = {
    "==": "write = for equality",
    "||": "write CONCAT(a, b), or OR between conditions",
    "&&": "write AND between conditions",
    "::": "columns have the types that CREATE STREAM declares",
    "!": "write NOT, or <> for inequality",
    "`": 'names are quoted as "name"',
}

_EXPRESSION = frozenset(
    [
        "IDENT",
        "QUOTED",
        "INT",
        "DECIMAL",
        "STRING",
        "TRUE",
        "FALSE",
        "NULL",
        "TIMESTAMP",
        "INTERVAL",
        "MINUS",
        "PLUS",
        "_LPAR",
    ]
)
# Groups of terminals in the order in which a message lists them; the first group with a terminal names it.
_WORDS: tuple[tuple[frozenset[str], str], ...] = tuple(
    (frozenset(terminals.split()), words)
    for terminals, words in (
        ("INT DECIMAL", "a number"),
        ("INT", "a whole number"),
        ("STRING IDENT QUOTED", "a topic's name such as 'alarms'"),
        ("TYPE_NAME", "a type (BIGINT, DOUBLE, STRING, BOOLEAN or TIMESTAMP)"),
        ("UNIT", "a unit (MILLISECONDS, SECONDS, MINUTES, HOURS or DAYS)"),
        ("_LSQB", "a window such as [RANGE 5 MINUTES]"),
        ("RANGE ROWS UNBOUNDED", "RANGE, ROWS or UNBOUNDED"),
        ("ALIAS _AS QUOTED", "an alias"),
        ("_AS", "AS"),
        ("EQUAL COMPARE", "a comparison (=, <, BETWEEN, IN, LIKE, IS NULL)"),
        ("PLUS MINUS STAR SLASH PERCENT", "an operator (+, -, *, /, %)"),
        ("_DOT", "'.'"),
        ("_BETWEEN _IN _LIKE", "BETWEEN, IN or LIKE"),
        ("NOT NULL", "NULL or NOT NULL"),
        ("_AND _OR", "AND, OR"),
        ("_COMMA", "','"),
        ("EQUAL", "'='"),
        ("_JOIN", "JOIN"),
        ("_CROSS", "CROSS JOIN UNNEST"),
        ("_UNNEST", "UNNEST"),
        ("_ARRAY", "ARRAY<...>"),
        ("_ROW", "ROW (...)"),
        ("_LESS", "'<'"),
        ("_MORE", "'>'"),
        ("_FROM", "FROM"),
        ("WHERE", "WHERE"),
        ("WINDOW", "WINDOW"),
        ("MAXWINDOW", "MAXWINDOW"),
        ("PARTITION", "PARTITION BY"),
        ("GROUP", "GROUP BY"),
        ("EMIT", "EMIT EVERY"),
        ("_EVERY", "EVERY"),
        ("EXCEPT", "EXCEPT"),
        ("_CREATE", "CREATE STREAM, CREATE TABLE"),
        ("_STREAM", "STREAM"),
        ("_TABLE", "TABLE"),
        ("_SELECT", "SELECT"),
        ("_INSERT", "INSERT INTO"),
        ("_INTO", "INTO"),
        ("_WITH", "WITH"),
        ("KEY PRIMARY", "KEY or PRIMARY KEY"),
        ("KEY", "KEY"),
        ("FOR", "FOR SYSTEM_TIME AS OF"),
        ("_SYSTEM_TIME", "SYSTEM_TIME"),
        ("_OF", "OF"),
        ("RETURNING", "RETURNING"),
        ("_ON", "ON"),
        ("_BY", "BY"),
        ("_AND", "AND"),
        ("_OR", "OR"),
        ("NULL", "NULL"),
        ("STRING", "a string in quotes such as '5 MINUTES'"),
        ("STAR", "'*'"),
        ("_LPAR", "'('"),
        ("_RPAR", "')'"),
        ("_RSQB", "']'"),
        ("_SEMICOLON", "';'"),
        ("$END", "the end of the text"),
    )
)
# Terminals that a message need not list next to one of the groups above.
_IMPLIED = {
    "a comparison (=, <, BETWEEN, IN, LIKE, IS NULL)": frozenset({"_BETWEEN", "_IN", "_LIKE", "_IS", "NOT"}),
    "JOIN": frozenset({"_INNER", "LEFT", "_OUTER", "_CROSS"}),
    "KEY or PRIMARY KEY": frozenset({"KEY"}),
    "a type (BIGINT, DOUBLE, STRING, BOOLEAN or TIMESTAMP)": frozenset({"_ARRAY", "_ROW"}),
    "';'": frozenset({"$END"}),
    "an alias": frozenset({"_AS", "FOR"}),
    "an operator (+, -, *, /, %)": frozenset({"_DOT", "_LPAR"}),
}
_NAME_AFTER = {
    "STREAM": "the stream's name",
    "TABLE": "the table's name",
    "FROM": "a stream's name",
    "JOIN": "a stream's name",
    "EXCEPT": "a stream's name",
    "AS": "an alias",
    ".": "a column's name",
    "BY": "a column such as A.k",
}
_KEYWORDS = {
    "UNIT": (
        "MILLISECONDS",
        "MILLISECOND",
        "SECONDS",
        "SECOND",
        "MINUTES",
        "MINUTE",
        "HOURS",
        "HOUR",
        "DAYS",
        "DAY",
    ),
    "_BETWEEN": ("BETWEEN",),
    "_LIKE": ("LIKE",),
    "NOT": ("NOT",),
    "_INNER": ("INNER",),
    "_AS": ("AS",),
    "RANGE": ("RANGE",),
    "ROWS": ("ROWS",),
    "UNBOUNDED": ("UNBOUNDED",),
    "PARTITION": ("PARTITION",),
    "EMIT": ("EMIT",),
    "_CREATE": ("CREATE",),
    "_INSERT": ("INSERT",),
} | {
    name: (name.strip("_"),)
    for name in [
        "_JOIN",
        "_CROSS",
        "_UNNEST",
        "_FROM",
        "WHERE",
        "WINDOW",
        "MAXWINDOW",
        "GROUP",
        "_EVERY",
        "EXCEPT",
        "_STREAM",
        "_TABLE",
        "_SELECT",
        "_INTO",
        "_WITH",
        "KEY",
        "RETURNING",
        "_ON",
        "_BY",
        "_AND",
        "_OR",
        "NULL",
    ]
}

_EVERY_KEYWORD = frozenset(word for words in _KEYWORDS.values() for word in words) | {
    "IN",
    "IS",
    "TRUE",
    "FALSE",
}


def syntax_error(parser: Lark, source: QueryText) -> QueryError:
    """The error of a text that `parser` refuses.

    Parses once more, token by token: Lark reports the tokens accepted after the reductions that the wrong
    token triggered, which are fewer than those accepted at its position. Cost: that of a parse times the
    depth of the parser's stack, on errors only.
    """
    at = len(source.text)
    interactive: Any = parser.parse_interactive(source.text)  # untyped in Lark
    before = interactive
    try:
        for token in interactive.lexer_thread.lex(interactive.parser_state):
            before = interactive.copy(deepcopy_values=False)
            at = token.start_pos or 0
            interactive.feed_token(token)
            before, at = interactive, len(source.text)
    except UnexpectedInput as error:
        token = getattr(error, "token", None)
        at = (token.start_pos or 0) if isinstance(token, Token) else error.pos_in_stream or 0
    return _error(source, at, before.accepts())


def _error(source: QueryText, at: int, accepted: Set[str]) -> QueryError:
    """The error at offset `at`, where one of `accepted` would do."""
    before: list[re.Match[str]] = []
    wrong: re.Match[str] | None = None
    after: re.Match[str] | None = None
    for match in _WORD.finditer(source.text):
        if match["unclosed"] and match.start() <= at:
            return source.error_at(_UNCLOSED[match["unclosed"]], match.start(), match.end())
        if match["skip"]:
            continue
        if match.end() <= at:
            before.append(match)
        elif wrong is None:
            wrong = match
        else:
            after = match
            break
    previous = before[-1].group() if before else ""
    expected = _words(accepted, previous)
    if wrong is None:
        end = before[-1].end() if before else 0
        return source.error_at(f"the text ends too early: expected {expected}", end, end + 1)
    text = wrong.group()
    start, end = max(wrong.start(), at), wrong.end()
    left_out = _left_out(source, before, wrong, after)
    if left_out is not None:
        return left_out
    if text in _INSTEAD:
        return source.error_at(f"unexpected {text!r}: {_INSTEAD[text]}", wrong.start(), end)
    hint = ""
    if wrong["name"] and text.upper() not in _EVERY_KEYWORD:
        spelled = [word for name in accepted for word in _KEYWORDS.get(name, ())]
        near = nearest(text, sorted(spelled))
        hint = f"; did you mean {near}?" if near else ""
    if not hint and before and before[-1]["name"] and previous.upper() not in _EVERY_KEYWORD:
        # A misspelt keyword may have been read as a name: FROM a WHRE a.x = 1.
        near = nearest(
            previous,
            ("WHERE", "WINDOW", "MAXWINDOW", "PARTITION", "GROUP", "EMIT", "JOIN", "FROM", "SELECT", "BETWEEN"),
        )
        hint = f"; did you mean {near} for {previous}?" if near else ""
    return source.error_at(f"expected {expected}; got '{shortened(source.text[start:end])}'{hint}", start, end)


def _left_out(
    source: QueryText, before: list[re.Match[str]], wrong: re.Match[str], after: re.Match[str] | None
) -> QueryError | None:
    """The error for SQL that this version does not have; None when the text is not such SQL."""
    text = wrong.group().upper()
    if text == "(" and after is not None and after.group().upper() == "SELECT":
        text, wrong = "SELECT", after
    if text == "SELECT" and (wrong is after or (before and before[-1].group() == "(")):
        return _not_part(source, "a SELECT inside another statement", "streams by name in FROM", wrong)
    place = wrong
    key = text if wrong["name"] else ""
    if key not in _LEFT_OUT:
        # DISTINCT, CASE and CAST read as names until a word after them does not fit.
        for index in range(len(before) - 1, max(len(before) - 9, -1), -1):
            if _opens(before, index, text, "" if after is None else after.group().upper()):
                place, key = before[index], before[index].group().upper()
                break
    if key not in _LEFT_OUT:
        return None
    what, instead = _LEFT_OUT[key]
    return _not_part(source, what, instead, place)


def _opens(before: list[re.Match[str]], index: int, wrong: str, after: str) -> bool:
    """Whether a word that may be a name is a keyword after all: SELECT DISTINCT x, CASE WHEN, CAST(x AS."""
    last = index == len(before) - 1
    match before[index].group().upper():
        case "DISTINCT":
            return last and index > 0 and before[index - 1].group().upper() in ("SELECT", "(")
        case "CASE":
            return last and "WHEN" in (wrong, after)
        case "CAST":
            return not last and before[index + 1].group() == "(" and wrong == "AS"
        case _:
            return False


def _not_part(source: QueryText, what: str, instead: str, place: re.Match[str]) -> QueryError:
    message = f"{what} is not part of this version's language, which accepts {instead}"
    return source.error_at(message, place.start(), place.end())


def _words(accepted: Set[str], previous: str) -> str:
    """The accepted terminals in words: "an alias, ',' or WHERE"."""
    left = set(accepted)
    if len(left) > 1:
        # A unit is accepted after any number in an expression; listing it would not help.
        left.discard("UNIT")
    found: list[str] = []
    if left >= _EXPRESSION:
        found.append("an expression")
        left -= _EXPRESSION | {"NOT"}
    for terminals, words in _WORDS:
        if left >= terminals:
            found.append(words)
            left -= terminals | _IMPLIED.get(words, frozenset())
    if left & {"IDENT", "ALIAS", "QUOTED"}:
        found.insert(0, _NAME_AFTER.get(previous.upper(), "a name"))
    if "_IS" in left and not found:
        found.append("IS")
    if len(found) <= 1:
        return "".join(found) or "something else"
    return ", ".join(found[:-1]) + f" or {found[-1]}"
