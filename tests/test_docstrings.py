"""Checks what docstrings say of other modules: the names exist, and a caller knows what it is said to call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOPS = "schemas", "operators", "services", "ops", "tests"
FILES = [str(path.relative_to(ROOT)) for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))]
SOURCES = {
    file.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): (ROOT / file).read_text()
    for file in FILES
    if ROOT / file != Path(__file__)
}
"""The source of every module but this one, by its dotted name; a package is its `__init__`."""

PLACES = SOURCES.keys() | {file.rpartition("/")[0].replace("/", ".") for file in FILES}
"""The modules and packages, also packages without an `__init__`."""

HANDED_OVER = "the task opener makes it and hands it over in a `TaskContext`"
AN_INTERFACE = "it calls the methods of `TaskChanges`, an interface"
WITHOUT_IMPORT = {
    ("services.batch.file_run", "services.batch.source_feed"): "it is the other way round: the run calls the feed",
    ("services.delivery.sink", "services.task.commits"): HANDED_OVER,
    ("services.program.group_members", "services.task.epochs"): AN_INTERFACE,
    ("services.program.migrations", "services.task.epochs"): AN_INTERFACE,
    ("services.recovery.snapshots", "services.task.commits"): HANDED_OVER,
    ("services.task.spill", "services.task.commits"): HANDED_OVER,
}
"""By module and caller, why the caller need not import the module that it calls."""

PATH = rf"(?:{'|'.join(TOPS)})(?:\.\w+)+"
VERBS = "adds?|asks?|calls?|chooses?|creates?|drives?|evaluates?|fills?|has|makes?|owns?|runs?|starts?|uses?"
CALLS = re.compile(rf"(`{PATH}`(?:(?:,|,? and) `{PATH}`)*) (?:{VERBS}) ((?:[^.;:]|\.(?=\w))*)")
IMPORT = re.compile(r"(?m)^ *(?:from ([\w.]+) import (\([^)]*|.*)|import ([\w.]+))")
DEFINED = r"(?m)^ *(?:(?:async )?def |class |self\.|from .* import .*\b|.*= )?{}\b *(?:[(:=\[,]|$)"


def docstrings(source: str) -> Iterator[str]:
    """The texts in triple quotes, each in one line."""
    return (" ".join(text.split()) for text in re.findall(r'"""(.*?)"""', source, re.DOTALL))


def split(name: str) -> tuple[str, list[str]]:
    """The module or package that a dotted name begins with, and the names in it."""
    parts = name.split(".")
    length = max((n for n in range(1, len(parts) + 1) if ".".join(parts[:n]) in PLACES), default=0)
    return ".".join(parts[:length]), parts[length:]


def exists(name: str) -> bool:
    """Whether a dotted name is that of a module, or of what a module defines or imports."""
    module, names = split(name)
    return module != "" and all(re.search(DEFINED.format(own), SOURCES.get(module, "")) for own in names)


def unknown_names(module: str, source: str) -> list[str]:
    """What docstrings name in backticks that does not exist: modules, names in modules, and files of Python."""
    around = [module[:end] for end, letter in enumerate(f"{module}.") if letter == "."]
    unknown = []
    for text in docstrings(source):
        unknown += [name for name in re.findall(rf"`({PATH})`", text) if not exists(name)]
        for name in re.findall(r"`([a-z]\w*\.[A-Z]\w*[a-z]\w*)`", text):  # a class of a module nearby, or of a library
            if not any(exists(f"{package}.{name}") for package in around) and not find_spec(name.split(".")[0]):
                unknown.append(name)
        for name in re.findall(r"`([\w./-]+\.py)`", text):
            if not any(f"/{file}".endswith(f"/{name}") for file in FILES):
                unknown.append(name)
    return unknown


def within(package: str) -> list[str]:
    """The sources of a module, or of all modules of a package."""
    return [source for name, source in SOURCES.items() if f"{name}.".startswith(f"{package}.")]


def imports(caller: str, module: str) -> bool:
    """Whether a module imports another one, or something from it; of a package, one of its modules."""
    for source in within(caller):
        for package, names, whole in IMPORT.findall(source):
            found = [whole or package, *(f"{package}.{name}" for name in re.findall(r"\w+", names))]
            if any(f"{name}.".startswith(f"{module}.") for name in found):
                return True
    return False


def wrong_callers(module: str, source: str) -> list[str]:
    """What the docstring at the top of a module says of its callers that cannot be true."""
    wrong = []
    for text in docstrings(source[: source.find('"""', 3) + 3]):
        for subject, predicate in CALLS.findall(text):
            for caller in [split(name)[0] for name in re.findall(rf"`({PATH})`", subject)]:
                if (module, caller) in WITHOUT_IMPORT:
                    continue
                if not imports(caller, module):
                    wrong.append(f"{caller} does not import {module}")
                for called in re.findall(r"`(?:\w+\.)*(\w+)`", predicate):
                    if not any(re.search(rf"\b{called}\b", own) for own in within(caller)):
                        wrong.append(f"{caller} does not name {called} of {module}")
    return wrong


def test_what_docstrings_name_exists() -> None:
    assert {module: found for module, source in SOURCES.items() if (found := unknown_names(module, source))} == {}


def test_callers_have_what_they_call() -> None:
    assert [wrong for module, source in SOURCES.items() for wrong in wrong_callers(module, source)] == []


def test_exceptions_are_needed() -> None:
    said = {(module, caller) for module, caller in WITHOUT_IMPORT if f"`{caller}`" in SOURCES[module]}
    assert said == WITHOUT_IMPORT.keys()
    assert [pair for pair in said if imports(pair[1], pair[0])] == []


@pytest.mark.parametrize(
    "said",
    [
        "See `services.task.tusk`.",
        "See `services.task.task.Tusk`.",
        "See `services.task.task.Task.begin`.",
        "`assignments.TaskManager` has it.",
        "`tests/test_docs.py` checks it.",
    ],
)
def test_an_unknown_name_is_seen(said: str) -> None:
    assert unknown_names("services.worker.task_opener", f'"""{said}"""') != []


@pytest.mark.parametrize(
    "said",
    [
        "`services.task.task` calls it between epochs.",
        "`services.task.epochs` uses `EpochTimer.postpone`.",
        "`services.task.epochs` and `services.worker.worker` use it.",
    ],
)
def test_a_wrong_caller_is_seen(said: str) -> None:
    assert wrong_callers("services.task.epoch_timer", f'"""{said}"""') != []


@pytest.mark.parametrize(
    "said",
    [
        "`services.task.epochs` uses an `EpochTimer`. See `services.task.task.Task.start`.",
        "`services.task` calls `EpochTimer.request`. See `epochs.EpochLoop`, `typer.Typer` and `epoch_timer.py`.",
    ],
)
def test_what_is_true_is_not(said: str) -> None:
    module = "services.task.epoch_timer"
    assert wrong_callers(module, f'"""{said}"""') == unknown_names(module, f'"""{said}"""') == []
