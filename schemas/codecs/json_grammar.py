"""Finds the members of one JSON record by JSON's grammar alone, for the decoder (`schemas.codecs.json_codec`).

orjson refuses legal JSON that it cannot represent: a number beyond the doubles, an escape that is half of a surrogate
pair, more than 1024 levels of brackets. In a field that the stream does not declare, such a value does not matter.
So a record that orjson refuses is read again here: only the members' texts are found, without converting them to
values. The whole grammar (RFC 8259) is covered, so a record that is refused here is broken.

Cost: about 0.3 us per token; no recursion, so any depth will do.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from schemas.codecs.decoded import RecordError, shown

_SPACE: Final = re.compile(r"[ \t\r\n]*+")
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"')
_NUMBER: Final = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
_SCALAR: Final = re.compile(rf"{_STRING.pattern}|{_NUMBER}|true|false|null")
_CLOSING: Final = {"{": "}", "[": "]"}
_SHOWN_CHARACTERS: Final = 20


def members(raw: bytes) -> list[tuple[str, str]]:
    """The members of the object that a record is: key and value as they are written, in order.

    Raises:
        RecordError: the record is broken JSON (the message says where), or is not an object.
    """
    try:
        text = raw.rstrip(b" \t\r\n").decode()
    except UnicodeDecodeError as error:
        raise RecordError(f"broken JSON: not UTF-8 ({error.reason} at byte {error.start + 1})") from None
    found: list[tuple[str, str]] = []
    begin = at = _skip_space(text, 0)
    if text[at : at + 1] != "{":
        at = _value_end(text, at)
    else:
        at = _skip_space(text, at + 1)
        more = text[at : at + 1] != "}"
        while more:
            key_end, value = _key(text, at)
            value_end = _value_end(text, value)
            found.append((text[at:key_end], text[value:value_end]))
            at = _skip_space(text, value_end)
            more = text[at : at + 1] == ","
            if more:
                at = _skip_space(text, at + 1)
            elif text[at : at + 1] != "}":
                _broken(text, at, "',' or '}'")
        at += 1
    end = _skip_space(text, at)
    if end < len(text):
        _broken(text, end, "the end of the record")
    if text[begin] != "{":
        raise RecordError(f"{shown(text[begin:at])} is not a JSON object")
    return found


def only_value(raw: bytes) -> str:
    """The one value that a text is, as it is written, without white space around it.

    Raises:
        RecordError: the text is broken JSON; the message says where.
    """
    text = raw.decode()
    begin = _skip_space(text, 0)
    end = _value_end(text, begin)
    rest = _skip_space(text, end)
    if rest < len(text):
        _broken(text, rest, "the end of the text")
    return text[begin:end]


def elements(text: str) -> list[str]:
    """The elements of an array as they are written, in order; `text` is a valid array."""
    found: list[str] = []
    at = _skip_space(text, 1)
    while text[at] != "]":
        end = _value_end(text, at)
        found.append(text[at:end])
        at = _skip_space(text, end)
        if text[at] == ",":
            at = _skip_space(text, at + 1)
    return found


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _key(text: str, at: int) -> tuple[int, int]:
    """Skip a key at `at` and its colon: the positions where the key ends and where the value begins."""
    match = _STRING.match(text, at)
    if match is None:
        _broken(text, at, "a key in quotes")
    colon = _skip_space(text, match.end())
    if text[colon : colon + 1] != ":":
        _broken(text, colon, "':'")
    return match.end(), _skip_space(text, colon + 1)


def _value_end(text: str, at: int) -> int:
    """The position where the value that begins at `at` ends."""
    closing: list[str] = []  # the closing brackets of those that are open
    while True:
        bracket = text[at : at + 1]
        if bracket in _CLOSING:
            closing.append(_CLOSING[bracket])
            at = _skip_space(text, at + 1)
            if text[at : at + 1] != closing[-1]:
                at = _key(text, at)[1] if bracket == "{" else at
                continue
        else:
            match = _SCALAR.match(text, at)
            if match is None:
                _broken(text, at, "a value")
            at = match.end()
        while closing:
            at = _skip_space(text, at)
            mark = text[at : at + 1]
            if mark == ",":
                at = _skip_space(text, at + 1)
                at = _key(text, at)[1] if closing[-1] == "}" else at
                break
            if mark != closing[-1]:
                _broken(text, at, f"',' or '{closing[-1]}'")
            closing.pop()
            at += 1
        else:
            return at


def _broken(text: str, at: int, expected: str) -> NoReturn:
    found = repr(text[at : at + _SHOWN_CHARACTERS]) if at < len(text) else "the end of the record"
    raise RecordError(f"broken JSON: expected {expected} at character {at + 1}, found {found}")
