"""The parser's tables in a file: read if they are good, computed if not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.language import parser as module
from schemas.language.parser import SUFFIX

TEXT = "SELECT * FROM a [ROWS 1]"


@pytest.fixture
def parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Parse in a process that has not parsed yet; True if it had to compute the tables."""
    built: list[bool] = []
    build = module._build
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(module, "_build", lambda text, file: (built.append(True), build(text, file))[1])

    def run() -> bool:
        module.parser.cache_clear()
        try:
            module.parser().parse(TEXT)
        finally:
            module.parser.cache_clear()
        return bool(built and built.pop())

    return run


def test_the_second_process_computes_nothing(tmp_path: Path, parse: Callable[[], bool]) -> None:
    assert parse()
    assert not parse()
    assert [file.suffix for file in tmp_path.iterdir()] == [SUFFIX]


DAMAGES = (lambda data: data[:-9], lambda data: b"", lambda data: data[:90] + b"?" + data[91:])


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_replaced(
    tmp_path: Path, parse: Callable[[], bool], damage: Callable[[bytes], bytes]
) -> None:
    parse()
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert parse()
    assert not parse()


def test_the_tables_of_another_grammar_are_not_read(
    tmp_path: Path, parse: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    parse()
    (old,) = tmp_path.iterdir()
    changed = tmp_path.parent / f"{tmp_path.name}.lark"
    changed.write_text(module.GRAMMAR.read_text() + "// changed\n")
    monkeypatch.setattr(module, "GRAMMAR", changed)
    assert parse()
    assert not old.exists(), "stale files are deleted"


def test_without_a_folder_nothing_is_kept(
    tmp_path: Path, parse: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOLDER", tmp_path / "missing")
    assert parse()
    assert parse()
