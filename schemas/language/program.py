"""Parses the query language: text to `schemas.query.Program`.

    CREATE STREAM temperature (mote BIGINT, room STRING, celsius DOUBLE, at TIMESTAMP)
      WITH (topic = 'sensors.temperature', timestamp = 'at', disorder = '2 SECONDS');
    INSERT INTO 'alarms'
    SELECT T.mote AS mote, T.celsius, H.percent
    FROM temperature T [RANGE 5 MINUTES], humidity H [RANGE 5 MINUTES]
    WHERE T.mote = H.mote AND T.celsius > 40;

There are two steps: Lark and `grammar.lark` make a tree of the text, and `schemas.language.binder` resolves its names
and types. Every text yields a Program or a QueryError with a position; nothing else is raised.

Cost: linear in the text. Limits: expressions nest up to `schemas.language.expressions.MAX_NESTING` levels.
"""

from __future__ import annotations

from lark import Token, Tree, UnexpectedInput

from schemas.language.binder import bind_program
from schemas.language.parser import parser
from schemas.language.query_text import QueryText
from schemas.language.syntax_errors import syntax_error
from schemas.query import Program


def parse_program(text: str) -> Program:
    """The streams and queries of a program, names resolved and types checked.

    Raises:
        QueryError: anything that the language does not accept, with line, column and a caret.
    """
    source = QueryText(text)
    return bind_program(parse_tree(source), source)


def parse_tree(source: QueryText) -> Tree[Token]:
    """The statements of a text, of which nothing is resolved.

    Raises:
        QueryError: the grammar does not accept the text.
    """
    built = parser()
    try:
        return built.parse(source.text)
    except UnexpectedInput:
        raise syntax_error(built, source) from None
