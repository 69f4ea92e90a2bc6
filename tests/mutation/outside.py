"""Breaks what is outside of the engine in small ways: a copy of the project, in which one file at a time is changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_COPIED = ("operators", "schemas", "services", "ops", "tests", "pyproject.toml")


def survivors(
    changes: Mapping[str, Sequence[tuple[str, str]]], tests: Mapping[str, Sequence[str]], words: Sequence[str]
) -> int:
    """Break one thing after the other and print whether tests notice; how many they do not.

    Args:
        changes: per file, a text that occurs once and what it becomes.
        tests: per file, what pytest is given.
        words: only files that contain one of them; none for all.

    Raises:
        ValueError: tests fail unbroken, or a text is not there once.
    """
    root, survived = Path(__file__).parents[2], 0
    with tempfile.TemporaryDirectory(prefix="weir-outside-") as folder:
        copy = Path(folder)
        for name in _COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, copy / name)
            else:
                shutil.copy(root / name, copy / name)
        chosen = [file for file in changes if not words or any(word in file for word in words)]
        for own in {tuple(tests[file]): None for file in chosen}:
            if _fails(copy, own):
                raise ValueError(f"{' '.join(own)} fails unbroken")
        for file in chosen:
            for old, new in changes[file]:
                text = (copy / file).read_text()
                if text.count(old) != 1:
                    raise ValueError(f"{file} has {old!r} {text.count(old)} times, not once")
                (copy / file).write_text(text.replace(old, new))
                caught = _fails(copy, tests[file])
                survived += not caught
                print(f"{'caught' if caught else 'SURVIVED':9} {file}: {old.strip()[:60]!r}", flush=True)
                (copy / file).write_text(text)
    return survived


def _fails(copy: Path, tests: Sequence[str]) -> bool:
    environment = {**os.environ, "PYTHONPATH": str(copy), "HYPOTHESIS_PROFILE": "mutation"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False).returncode == 1
