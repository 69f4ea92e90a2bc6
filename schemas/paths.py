"""Parses paths into values: the one that FROM gives of a column, `items[0].sku`, and that of JSON_VALUE."""

from __future__ import annotations

import re

from schemas.errors import UsageError
from schemas.query import Path

_NAME = re.compile(r'[^.\[\]"\s](?:[^.\[\]"]*[^.\[\]"\s])?')
_PLACE = re.compile(r"\[([0-9]{1,9})\]")
_QUOTED = re.compile(r"""\["(?P<double>(?:[^"]|"")*)"\]|\['(?P<single>(?:[^']|'')*)'\]""")
_STEP = re.compile(
    r"""\.(?P<name>[\w$@-]+)|\."(?P<quoted>(?:[^"]|"")+)"|\[(?P<place>[0-9]{1,9})\]"""
    r"""|\["(?P<double>(?:[^"]|"")*)"\]|\['(?P<single>(?:[^']|'')*)'\]"""
)


def parse_path(text: str) -> Path:
    """Return the steps of a path: names of fields and keys of maps, and places in arrays, from 0.

    Raises:
        UsageError: with the first character that fits no step.
    """
    steps: list[str | int] = []
    at = 0
    while at < len(text) or not steps:
        if quoted := _QUOTED.match(text, at):
            double, single = quoted.groups()
            steps.append(double.replace('""', '"') if single is None else single.replace("''", "'"))
            at = quoted.end()
        elif steps and (place := _PLACE.match(text, at)):
            steps.append(int(place[1]))
            at = place.end()
        else:
            begin = at
            if steps and text[at : at + 1] == ".":
                begin += 1
            name = _NAME.match(text, begin) if begin > at or not steps else None
            if name is None:
                raise UsageError(
                    f"a path is made of names, places and keys, such as 'customer.city', 'items[0].sku' and "
                    f"'labels[\"app.name\"]'; got {text!r}, wrong from character {at + 1}"
                )
            steps.append(name[0])
            at = name.end()
    return tuple(steps)


def path_text(path: Path) -> str:
    """Return the text that `parse_path` reads as this path."""
    found = ""
    for step in path:
        if isinstance(step, int):
            found += f"[{step}]"
        elif _NAME.fullmatch(step):
            found += f".{step}" if found else step
        else:
            found += '["{}"]'.format(step.replace('"', '""'))
    return found


def parse_json_path(text: str) -> Path:
    """Return the steps of a path of JSON_VALUE: `$` is the text itself.

    Raises:
        UsageError: with the first character that fits no step.
    """
    steps: list[str | int] = []
    at = 1
    while text[:1] == "$" and at < len(text) and (step := _STEP.match(text, at)):
        name, quoted, place, double, single = step.groups()
        if place is not None:
            steps.append(int(place))
        elif single is not None:
            steps.append(single.replace("''", "'"))
        else:
            steps.append(name or (quoted or double or "").replace('""', '"'))
        at = step.end()
    if text[:1] != "$" or at < len(text):
        wrong = 1 if text[:1] != "$" else at + 1
        raise UsageError(
            f"a path begins with $, and is made of names, keys and places in arrays, such as '$.customer.city', "
            f"'$[\"app.name\"]' and '$.items[0].sku'; got {text!r}, wrong from character {wrong}"
        )
    return tuple(steps)
