"""Commands that are imported only when they are called, so that `weir --help` does not load every command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class Entry:
    """A command in the list: where its code is, and its help.

    Attributes:
        module: the module to import when the command is called.
        attribute: the command's function in the module, or the `typer.Typer` of its subcommands.
        help: the first paragraph of the command's own help. `tests/services/test_cli.py` compares the two.
    """

    module: str
    attribute: str
    help: str


class LazyCommand(TyperCommand):
    """Stands for a command in the list of commands until it is called.

    Args:
        name: the command's name.
        settings: the settings of every command, such as the names of its help option.
    """

    def __init__(self, name: str, entry: Entry, settings: Mapping[str, Any]) -> None:
        super().__init__(name, help=entry.help)
        self._entry = entry
        self._settings = dict(settings)

    def load(self) -> Any:
        """The command itself, with its options. Imports its module."""
        target = getattr(import_module(self._entry.module), self._entry.attribute)
        if isinstance(target, typer.Typer):
            target.info.name = self.name
            target.info.context_settings = self._settings
            command: Any = typer.main.get_group(target)
        else:
            alone = typer.Typer(add_completion=False, context_settings=self._settings)
            alone.command(self.name)(target)
            command = typer.main.get_command(alone)
        command.name = self.name
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context in which the loaded command runs: whoever calls a command runs the command of its context."""
        return self.load().make_context(info_name, args, parent=parent, **extra)


def lazy_group(entries: Mapping[str, Entry], settings: Mapping[str, Any]) -> type[TyperGroup]:
    """The class of a group whose commands are `LazyCommand`s, for `typer.Typer(cls=...)`.

    Args:
        entries: the commands by name, in the order of the help.
        settings: the settings of every command.
    """

    class LazyGroup(TyperGroup):
        """A group of commands that are imported when they are called."""

        def __init__(self, **options: Any) -> None:
            options["commands"] = {name: LazyCommand(name, entry, settings) for name, entry in entries.items()}
            super().__init__(**options)

    return LazyGroup
