"""The command line as a whole: what it loads, and what its list of commands says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from schemas.errors import UsageError
from services.cli import COMMANDS, app
from services.lazy_commands import LazyCommand

HEAVY = ("numba", "numpy", "pyarrow", "pandas", "polars", "pyspark", "faust", "confluent_kafka", "lark")


def _commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_the_command_says(name: str) -> None:
    command = _commands()[name]
    assert isinstance(command, LazyCommand)
    own = (command.load().help or "").split("\n\n")[0]
    assert " ".join(own.split()) == COMMANDS[name].help


def test_help_loads_no_library_that_only_a_command_needs() -> None:
    script = f"""
import sys
from services.cli import main

sys.argv = ["weir", "--help"]
try:
    main()
except SystemExit:
    print("loaded", *(set({HEAVY!r}) & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded"


@pytest.mark.parametrize("arguments", [("query", "--help"), ("broker", "start", "--help"), ("run", "-h")])
def test_a_command_shows_its_own_help(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0
    assert "weir " + " ".join(arguments[:-1]) in result.output


def test_an_unknown_command_is_refused_with_a_near_one() -> None:
    result = CliRunner().invoke(app, ["rum"])
    assert result.exit_code == 2
    assert "'run'" in result.output


@pytest.mark.parametrize("name", ["größe", "a" * 241])
def test_the_name_of_a_group_is_one_that_topics_may_begin_with(name: str, tmp_path: Path) -> None:
    """Regression: such a group could be registered, and no worker of it ever started."""
    result = CliRunner().invoke(app, ["query", "register", name, str(tmp_path / "q.sql"), "--group"])
    assert isinstance(result.exception, UsageError)
    assert "begins those of topics" in str(result.exception)
