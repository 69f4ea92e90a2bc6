"""State directories: one process per slot, and what a successor inherits."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import StateError
from services.recovery.state_dir import StateDir


def test_each_takes_a_slot_of_its_own(tmp_path: Path) -> None:
    first, second = StateDir(tmp_path), StateDir(tmp_path)
    assert (first.path.name, second.path.name) == ("slot-0", "slot-1")
    first.release()
    third = StateDir(tmp_path)
    assert third.path.name == "slot-0"


def test_a_successor_learns_the_former_member_id(tmp_path: Path) -> None:
    first = StateDir(tmp_path)
    assert first.member() == ""
    first.remember_member("m-1")
    first.release()
    assert StateDir(tmp_path).member() == "m-1"


def test_a_file_in_the_way_is_reported(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(StateError, match=r"state directory .*taken cannot be used: "):
        StateDir(tmp_path / "taken")
