"""What is wrong with the arguments of commands that take a query is said before Kafka is asked; here nobody answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from schemas.errors import BrokerError, UsageError
from services.broker.background import free_port
from services.cli import app
from services.registry.query_registry import names_file


def weir(*arguments: str) -> Result:
    """Run a command without a broker."""
    return CliRunner().invoke(app, [*arguments, "--bootstrap", f"127.0.0.1:{free_port()}"])


@pytest.mark.parametrize("command", ["worker", "explain", "top"])
def test_a_misspelt_path_is_not_looked_for_in_kafka(command: str, tmp_path: Path) -> None:
    """`weir worker` asked for a group of that name, and ended with code 1 because Kafka did not answer."""
    result = weir(command, str(tmp_path / "alarmz.sql"))
    assert isinstance(result.exception, UsageError)
    assert str(result.exception).startswith("cannot read ")


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--epoch", "0ms", "--epoch must be at least 1ms, got '0ms'"),
        ("--commit", "1 fortnight", "unknown unit 'fortnight'"),
        ("--snapshot", "0ms", "--snapshot must be"),
        ("--idle-timeout", "0ms", "--idle-timeout must be"),
        ("--max-ahead", "0ms", "--max-ahead must be"),
        ("--session-timeout", "5ms", "--session-timeout must be at least 1000ms"),
        ("--transaction-timeout", "5ms", "--transaction-timeout must be at least 1000ms"),
        ("--max-silence", "soon", "a duration is"),
        ("--memory", "much", "a size is"),
    ],
)
def test_a_wrong_value_does_not_wait_for_kafka(option: str, value: str, reason: str) -> None:
    """A worker of a registered query said so only once Kafka had answered."""
    result = weir("worker", "alarms", "--no-wait", option, value)
    assert isinstance(result.exception, UsageError)
    assert str(result.exception).startswith(reason)


@pytest.mark.parametrize(
    "arguments", ["worker none.sql", "coordinator none.sql", "query register q none.sql --from-now"]
)
def test_topics_have_a_replica_at_least(arguments: str) -> None:
    """A replication factor of 0 was taken for the broker's default without a word."""
    result = weir(*arguments.split(), "--replication", "0")
    assert result.exit_code == 2
    assert "--replication" in result.output
    for accepted in ("-1", "3"):
        found = weir(*arguments.split(), "--replication", accepted).exception
        assert isinstance(found, UsageError), "the next thing that is wrong"


def test_a_folder_is_no_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder hid the registered query of its name."""
    monkeypatch.chdir(tmp_path)
    Path("alarms").mkdir()
    Path("query").touch()
    named = {name: names_file(Path(name)) for name in ("alarms", "query", "other", "other.sql", "./a/b", ".")}
    assert named == {"alarms": False, "query": True, "other": False, "other.sql": True, "./a/b": True, ".": True}


@pytest.mark.deep
def test_a_folder_is_no_query_that_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("alarms").mkdir()
    assert isinstance(weir("explain", "alarms").exception, BrokerError), "the registry is asked"
