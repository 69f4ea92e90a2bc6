"""The generated parts of the manual: the command reference, from the command line's own help, and what cannot be
combined, from `schemas.refusals`.

    python -m services.reference

rewrites the part of each page between its two marks. `tests/test_readme.py` checks that pages and code agree.
The Kafka security options are the same for every command that reaches Kafka, and those of a schema registry for every
command that reads topics. The reference shows them once, in tables of their own behind the commands, and each of these
commands links to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from schemas import refusals
from schemas.errors import UsageError
from services.cli import app
from services.commands.options.kafka import KAFKA
from services.commands.options.registry import REGISTRY
from services.lazy_commands import LazyCommand

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "ops/docs/commands.md"
COMBINATIONS = ROOT / "ops/docs/combinations.md"
BEGIN = "<!-- made by `python -m services.reference` -->"
END = "<!-- end -->"
SHARED = (KAFKA, REGISTRY)
"""Panels of options that are the same wherever they are."""


def reference() -> str:
    """Every command with its arguments and options, and the options that they share, as Markdown.

    Raises:
        UsageError: two commands have different options of one panel of `SHARED`, so one table cannot show them.
    """
    commands = list(_commands(typer.main.get_command(app), "weir"))
    sections = [_section(name, command) for name, command in commands]
    for panel in SHARED:
        options = {rows for _, command in commands if (rows := tuple(map(_row, _of_panel(command, panel))))}
        if len(options) != 1:
            raise UsageError(f"commands have {len(options)} different sets of {panel} options")
        sections.append("\n".join([f"## {panel} options", *_table(panel, options.pop())]))
    return "\n\n".join(sections)


def combinations() -> str:
    """What cannot be combined, and why, as Markdown."""
    parts = {
        "Overview": refusals.overview(),
        "Settings and features of a query": refusals.matrix(of_features=True),
        "Settings among each other": refusals.matrix(of_features=False),
        "Reasons": refusals.reasons(),
    }
    return "\n\n".join(f"## {title}\n\n" + "\n".join(lines) for title, lines in parts.items())


PARTS = {PAGE: reference, COMBINATIONS: combinations}
"""The pages with a generated part, and what makes it."""


def renewed(path: Path) -> str:
    """The text of one of `PARTS` with a new part between its marks.

    Raises:
        UsageError: the page lacks the marks, or see `reference`.
    """
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"{path} must have the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{PARTS[path]()}\n\n{END}{after}"


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The commands that do something, with their full names."""
    if isinstance(command, LazyCommand):
        command = command.load()
    subcommands = getattr(command, "commands", {})
    if not subcommands or getattr(command, "invoke_without_command", False):
        yield path, command
    for name, subcommand in subcommands.items():
        yield from _commands(subcommand, f"{path} {name}")


def _options(command: Any) -> list[Any]:
    return [p for p in command.params if p.param_type_name == "option"]


def _of_panel(command: Any, panel: str | None) -> list[Any]:
    return [p for p in _options(command) if p.rich_help_panel == panel]


def _section(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = _options(command)
    usage = " ".join([name, *(p.metavar or p.name.upper() for p in arguments)])
    lines = [f"## `{usage}`", "", _text((command.help or "").split("\n\n")[0])]
    lines += [f"The argument can be given as `{p.envvar}` instead." for p in arguments if p.envvar]
    for panel in dict.fromkeys(p.rich_help_panel for p in options):
        if panel in SHARED:
            anchor = f"{panel} options".lower().replace(" ", "-")
            lines += ["", f"Also the [{panel} options](#{anchor})."]
        else:
            lines += _table(panel, tuple(_row(p) for p in _of_panel(command, panel)))
    return "\n".join(lines)


def _table(panel: str | None, rows: tuple[str, ...]) -> list[str]:
    title = f"{panel} option" if panel else "option"
    return ["", f"| {title} | variable | default | |", "| --- | --- | --- | --- |", *rows]


def _row(option: Any) -> str:
    spelled = "/".join([*option.opts, *option.secondary_opts])
    choices = "\\|".join(member.value for member in type(option.default)) if _is_choice(option) else ""
    taken = "" if option.is_flag else f" {option.metavar or choices}".rstrip()
    variable = f"`{option.envvar}`" if option.envvar else ""
    return f"| `{spelled}{taken}` | {variable} | {_default(option)} | {_text(option.help or '')} |"


def _is_choice(option: Any) -> bool:
    return isinstance(option.default, Enum)


def _default(option: Any) -> str:
    value = option.default
    if value is None or value == []:
        return ""
    if isinstance(value, bool):
        return ("on" if value else "off") if option.secondary_opts else ""
    return f"`{value.value if _is_choice(option) else value}`"


def _text(text: str) -> str:
    """One line in which Markdown shows every character as it is."""
    joined = " ".join(text.split())
    return joined.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    for path in PARTS:
        path.write_text(renewed(path))
