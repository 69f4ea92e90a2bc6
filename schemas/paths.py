"""Parses the path that FROM gives of a column: `customer.address.city`, `items[0].sku`, `labels["app.name"]`."""

from __future__ import annotations

import re

from schemas.errors import UsageError
from schemas.query import Path

_NAME = re.compile(r'[^.\[\]"\s](?:[^.\[\]"]*[^.\[\]"\s])?')
_PLACE = re.compile(r"\[([0-9]{1,9})\]")
_QUOTED = re.compile(r'\["((?:[^"]|"")*)"\]')


def parse_path(text: str) -> Path:
    """Return the steps of a path: names of fields and keys of maps, and places in arrays, from 0.

    Raises:
        UsageError: with the first character that fits no step.
    """
    steps: list[str | int] = []
    at = 0
    while at < len(text) or not steps:
        if quoted := _QUOTED.match(text, at):
            steps.append(quoted[1].replace('""', '"'))
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
