"""What has been compiled is used again until a source of it changes, in whichever file: real processes, real caches."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

RUN = """
from pack import alone, inner, outer
said = [outer.called(1), outer.inlined_into(1), outer.constant(1), alone.own(1)]
kernels = outer.called, outer.inlined_into, outer.constant, alone.own
print(*said, *(sum(kernel.stats.cache_misses.values()) for kernel in kernels))
"""
"""Prints what four kernels say, and how many versions of each had to be compiled."""

FILES = {
    "__init__": "",
    "inner": """
from pack.innermost import FACTOR, added
from schemas.compiled import compiled, inlined

@compiled
def step(x):
    return added(x)

@inlined
def scaled(x):
    return x * FACTOR
""",
    "innermost": """
from schemas.compiled import compiled

FACTOR = 10

@compiled
def added(x):
    return x + 1
""",
    "outer": """
from pack.inner import scaled, step
from pack.innermost import FACTOR
from schemas.compiled import compiled

@compiled
def called(x):
    return step(x)

@compiled
def inlined_into(x):
    return scaled(x)

@compiled
def constant(x):
    return x + FACTOR
""",
    "alone": """
from schemas.compiled import compiled

@compiled
def own(x):
    return -x
""",
}


class Kernels:
    """A package of kernels that call each other across files, and its cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        (folder / "pack").mkdir()
        for name, text in FILES.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        (self.folder / "pack" / f"{name}.py").write_text(text)

    def change(self, name: str, old: str, new: str) -> None:
        assert old in FILES[name]
        self.write(name, FILES[name].replace(old, new))

    def start(self) -> subprocess.Popen[str]:
        # Bytecode goes by whole seconds and sizes: of two versions within one second it may be the first one's.
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self.folder}:{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "NUMBA_CACHE_DIR": str(self.cache),
        }
        return subprocess.Popen([sys.executable, "-c", RUN], env=environment, stdout=subprocess.PIPE, text=True)

    def run(self) -> tuple[list[int], list[int]]:
        return outcome(self.start())


def outcome(process: subprocess.Popen[str]) -> tuple[list[int], list[int]]:
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    numbers = [int(word) for word in out.split()]
    return numbers[:4], numbers[4:]


@pytest.fixture
def kernels(tmp_path: Path) -> Kernels:
    found = Kernels(tmp_path)
    assert found.run() == ([2, 10, 11, -1], [1, 1, 1, 1])
    return found


def test_a_second_process_compiles_nothing(kernels: Kernels) -> None:
    for name, text in FILES.items():
        kernels.write(name, text)
    assert kernels.run() == ([2, 10, 11, -1], [0, 0, 0, 0]), "the same text again is no change"


def test_what_changes_elsewhere_is_seen(kernels: Kernels) -> None:
    """Numba by itself minds the file of the kernel that is called and no other: it went on with the old one."""
    kernels.change("innermost", "x + 1", "x + 2")
    assert kernels.run() == ([3, 10, 11, -1], [1, 1, 1, 0]), "two files away; what has nothing to do with it stays"
    kernels.change("innermost", "FACTOR = 10", "FACTOR = 20")
    assert kernels.run() == ([2, 20, 21, -1], [1, 1, 1, 0])
    kernels.change("inner", "x * FACTOR", "x * FACTOR + 5")
    assert kernels.run() == ([2, 25, 21, -1], [1, 1, 1, 0])
    assert kernels.run() == ([2, 25, 21, -1], [0, 0, 0, 0])


def test_processes_that_start_at_once_agree(kernels: Kernels) -> None:
    """Whoever compiles first, nobody reads what is stale."""
    kernels.change("innermost", "x + 1", "x + 2")
    found = [outcome(process) for process in [kernels.start() for _ in range(3)]]
    assert [said for said, _ in found] == [[3, 10, 11, -1]] * 3
    assert kernels.run() == ([3, 10, 11, -1], [0, 0, 0, 0])


def test_what_an_old_process_writes_is_not_read(kernels: Kernels) -> None:
    """A worker goes on while its sources are exchanged, and compiles one more version of an old kernel."""
    old = kernels.folder / "old"
    shutil.copytree(kernels.cache, old)
    kernels.change("innermost", "x + 1", "x + 2")
    assert kernels.run()[0] == [3, 10, 11, -1]
    shutil.copytree(old, kernels.cache, dirs_exist_ok=True)
    assert kernels.run() == ([3, 10, 11, -1], [1, 1, 1, 0])


def test_a_cache_that_was_copied_is_good_until_sources_change(kernels: Kernels) -> None:
    """What `services.kernel_cache` does with one that can only be read."""
    kernels.cache = shutil.copytree(kernels.cache, kernels.folder / "copy")
    assert kernels.run() == ([2, 10, 11, -1], [0, 0, 0, 0])
    kernels.change("innermost", "x + 1", "x + 2")
    assert kernels.run() == ([3, 10, 11, -1], [1, 1, 1, 0])
