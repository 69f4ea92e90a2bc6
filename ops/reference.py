"""The command reference of README.md, made from the command line's own help:

    python -m ops.reference

writes it anew between the two marks. A test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from schemas.errors import UsageError
from services.cli import app

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN = "<!-- commands: made by `python -m ops.reference` -->"
END = "<!-- end of commands -->"


def reference() -> str:
    """Every command with its arguments and options, as Markdown."""
    sections = [_section(name, command) for name, command in _commands(typer.main.get_command(app), "weir")]
    return "\n\n".join(sections)


def with_reference(readme: str) -> str:
    """A README with the reference between its marks renewed.

    Raises:
        UsageError: it has no marks.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"{README} must have the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{reference()}\n\n{END}{after}"


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The commands that do something, with their full names."""
    subcommands = getattr(command, "commands", {})
    if not subcommands or getattr(command, "invoke_without_command", False):
        yield path, command
    for name, subcommand in subcommands.items():
        yield from _commands(subcommand, f"{path} {name}")


def _section(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = " ".join([name, *(p.metavar or p.name.upper() for p in arguments)])
    lines = [f"#### `{usage}`", "", _text((command.help or "").split("\n\n")[0])]
    lines += [f"The argument can be given as `{p.envvar}` instead." for p in arguments if p.envvar]
    panels = dict.fromkeys(p.rich_help_panel for p in options)
    for panel in panels:
        title = f"{panel} option" if panel else "option"
        lines += ["", f"| {title} | variable | default | |", "| --- | --- | --- | --- |"]
        lines += [_row(p) for p in options if p.rich_help_panel == panel]
    return "\n".join(lines)


def _row(option: Any) -> str:
    spelled = "/".join([*option.opts, *option.secondary_opts])
    choices = "\\|".join(member.value for member in type(option.default)) if _chosen(option) else ""
    taken = "" if option.is_flag else f" {option.metavar or choices}".rstrip()
    variable = f"`{option.envvar}`" if option.envvar else ""
    return f"| `{spelled}{taken}` | {variable} | {_default(option)} | {_text(option.help or '')} |"


def _chosen(option: Any) -> bool:
    return isinstance(option.default, Enum)


def _default(option: Any) -> str:
    value = option.default
    if value is None or value == []:
        return ""
    if isinstance(value, bool):
        return ("on" if value else "off") if option.secondary_opts else ""
    return f"`{value.value if _chosen(option) else value}`"


def _text(text: str) -> str:
    """One line that Markdown shows as it was meant."""
    joined = " ".join(text.split())
    return joined.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    README.write_text(with_reference(README.read_text()))
