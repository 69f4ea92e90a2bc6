"""Compiled kernels are reused until any of their sources changes, in whichever file: real processes, real caches."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from schemas.kernel_files import KernelFiles

ROOT = Path(__file__).parents[2]

RUN = """
from pack import alone, inner, outer
said = [outer.called(1), outer.inlined_into(1), outer.constant(1), alone.own(1)]
kernels = outer.called, outer.inlined_into, outer.constant, alone.own
print(*said, *(sum(kernel.stats.cache_misses.values()) for kernel in kernels))
"""
"""Prints the results of four kernels, and how many versions of each had to be compiled."""

DIE = """
import os, sys
left, replace = int(sys.argv[1]), os.replace

def replace_or_die(source, target):
    global left
    left -= 1
    if left < 0:
        os._exit(0)
    replace(source, target)

os.replace = replace_or_die
"""
"""Files are renamed with `os.replace`: the process ends before the n-th call, as by kill -9."""

NO_ROOM = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
"""

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

    def start(self, script: str = RUN, *arguments: str) -> subprocess.Popen[str]:
        # Bytecode is identified by whole seconds and sizes: two versions within one second may share the first one's.
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self.folder}:{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "NUMBA_CACHE_DIR": str(self.cache),
        }
        command = [sys.executable, "-c", script, *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def files(self) -> set[Path]:
        return {path for path in self.cache.rglob("*") if path.is_file()}

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
    """Numba by itself checks only the file of the kernel that is called: it continued with the old code."""
    kernels.change("innermost", "x + 1", "x + 2")
    assert kernels.run() == ([3, 10, 11, -1], [1, 1, 1, 0]), "two files away; what has nothing to do with it stays"
    kernels.change("innermost", "FACTOR = 10", "FACTOR = 20")
    assert kernels.run() == ([2, 20, 21, -1], [1, 1, 1, 0])
    kernels.change("inner", "x * FACTOR", "x * FACTOR + 5")
    assert kernels.run() == ([2, 25, 21, -1], [1, 1, 1, 0])
    assert kernels.run() == ([2, 25, 21, -1], [0, 0, 0, 0])


@pytest.mark.deep
def test_processes_that_start_at_once_agree(kernels: Kernels) -> None:
    """Whichever process compiles first, no process reads stale code."""
    kernels.change("innermost", "x + 1", "x + 2")
    found = [outcome(process) for process in [kernels.start() for _ in range(3)]]
    assert [said for said, _ in found] == [[3, 10, 11, -1]] * 3
    assert kernels.run() == ([3, 10, 11, -1], [0, 0, 0, 0])


@pytest.mark.deep
def test_what_an_old_process_writes_is_not_read(kernels: Kernels) -> None:
    """A worker runs while its sources are replaced, and compiles one more version of an old kernel."""
    old = kernels.folder / "old"
    shutil.copytree(kernels.cache, old)
    kernels.change("innermost", "x + 1", "x + 2")
    assert kernels.run()[0] == [3, 10, 11, -1]
    shutil.copytree(old, kernels.cache, dirs_exist_ok=True)
    assert kernels.run() == ([3, 10, 11, -1], [0, 0, 0, 0])


@pytest.mark.deep
def test_a_cache_that_was_copied_is_good_until_sources_change(kernels: Kernels) -> None:
    """`services.process.kernel_cache` copies a cache that is read-only."""
    kernels.cache = shutil.copytree(kernels.cache, kernels.folder / "copy")
    assert kernels.run() == ([2, 10, 11, -1], [0, 0, 0, 0])
    kernels.change("innermost", "x + 1", "x + 2")
    assert kernels.run() == ([3, 10, 11, -1], [1, 1, 1, 0])


@pytest.mark.deep
@pytest.mark.parametrize("files", range(4))
def test_a_process_that_dies_while_writing_leaves_nothing_wrong(kernels: Kernels, files: int) -> None:
    """Numba's own index named the new version before it was written, and readers found an old one under its name."""
    kernels.change("innermost", "x + 1", "x + 2")
    dying = kernels.start(DIE + RUN, str(files))
    assert dying.communicate(timeout=120)[0] == "", "it died before it said anything"
    assert kernels.run()[0] == [3, 10, 11, -1]
    assert kernels.run() == ([3, 10, 11, -1], [0, 0, 0, 0])


@pytest.mark.deep
def test_what_is_stale_is_removed(kernels: Kernels) -> None:
    before = kernels.files()
    kernels.change("innermost", "x + 1", "x + 2")
    kernels.run()
    after = kernels.files()
    assert len(after) == len(before)
    assert len(after & before) == 1, "that of the kernel which has nothing to do with it"


@pytest.mark.deep
def test_a_cut_off_file_is_no_version(kernels: Kernels) -> None:
    """A machine that loses power may keep a file's name and none or a part of its contents."""
    for at, path in enumerate(sorted(kernels.files())):
        os.truncate(path, os.path.getsize(path) // 2 * (at % 2))
    assert kernels.run() == ([2, 10, 11, -1], [1, 1, 1, 1])
    assert kernels.run() == ([2, 10, 11, -1], [0, 0, 0, 0])


@pytest.mark.deep
def test_a_full_disk_costs_another_compilation(kernels: Kernels) -> None:
    kernels.change("innermost", "x + 1", "x + 2")
    before = kernels.files()
    assert outcome(kernels.start(NO_ROOM + RUN)) == ([3, 10, 11, -1], [1, 1, 1, 0])
    assert kernels.files() == before
    assert kernels.run() == ([3, 10, 11, -1], [1, 1, 1, 0])


def test_two_that_write_at_once_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever one process does between any two steps of the other. With Numba's index both could take one number."""
    one, other = KernelFiles(tmp_path, "kernel", "stamp"), KernelFiles(tmp_path, "kernel", "stamp")
    replace = os.replace

    def between(source: str, target: Path) -> None:
        monkeypatch.setattr(os, "replace", replace)
        other.save("float64", "of doubles")
        replace(source, target)

    monkeypatch.setattr(os, "replace", between)
    one.save("int64", "of whole numbers")
    for files in (one, other):
        assert (files.load("int64"), files.load("float64")) == ("of whole numbers", "of doubles")
    assert KernelFiles(tmp_path, "kernel", "another").load("int64") is None


def test_kernels_do_not_meet(tmp_path: Path) -> None:
    one, longer = KernelFiles(tmp_path, "kernel", "stamp"), KernelFiles(tmp_path, "kernels", "other stamp")
    one.save("int64", "of one")
    assert longer.load("int64") is None
    longer.save("int64", "of the other")
    one.save("float64", "of one")
    assert (one.load("int64"), longer.load("int64")) == ("of one", "of the other")
    one.flush()
    assert (one.load("int64"), longer.load("int64")) == (None, "of the other")


class Alike(NamedTuple):
    """Keys with the same text."""

    number: int

    def __repr__(self) -> str:
        return "Alike"


def test_what_only_looks_like_the_key_is_not_it(tmp_path: Path) -> None:
    files = KernelFiles(tmp_path, "kernel", "stamp")
    files.save(Alike(1), "one")
    assert files.load(Alike(1)) == "one"
    assert files.load(Alike(2)) is None
