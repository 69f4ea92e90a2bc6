"""Helpers that inspect the errors of refused texts."""

from __future__ import annotations

import pytest

from schemas.errors import QueryError
from schemas.language.program import parse_program


def failure(text: str) -> QueryError:
    """The error that a text is refused with."""
    with pytest.raises(QueryError) as caught:
        parse_program(text)
    return caught.value


def underlined(error: QueryError) -> str:
    """The text over the caret."""
    *_, source, carets = str(error).split("\n")
    start = carets.index("^")
    return source[start : start + carets.count("^")].strip()


def refused(text: str, place: str, piece: str) -> QueryError:
    """Check that the error underlines a place and that its message contains a piece; returns the error."""
    error = failure(text)
    assert piece in error.message
    assert underlined(error) == place
    return error
