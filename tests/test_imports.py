"""Checks the layers: services -> operators -> schemas, and an engine without access to the outside world."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_origin

import numpy as np
import pytest

from schemas import columns

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("schemas", "operators", "services", "ops")

MAY_IMPORT = {
    "schemas": {"schemas"},
    "operators": {"operators", "schemas"},
    "services": {"services", "operators", "schemas"},
    "services.commands": {"ops", "services", "operators", "schemas"},
    "ops": {"ops", "services", "operators", "schemas"},
}
"""What each package may import of this project; the longest matching name counts. The command line is the
outermost part: `weir demo` and `weir bench` are in ops."""

KAFKA = {"aiokafka", "confluent_kafka", "faust", "kafka", "mode"}
OUTSIDE_WORLD = {
    # clocks
    "sched",
    "time",
    # threads and processes
    "_thread",
    "asyncio",
    "concurrent",
    "multiprocessing",
    "queue",
    "signal",
    "subprocess",
    "threading",
    # environment, files, network
    "http",
    "io",
    "os",
    "pathlib",
    "shutil",
    "socket",
    "sys",
    "tempfile",
    "urllib",
    # chance
    "random",
    "secrets",
    "uuid",
    # what people watch
    "logging",
    "prometheus_client",
    "rich",
    "typer",
}
WALL_CLOCK = {"now", "today", "utcnow"}
NAMELESS = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}


@dataclass(frozen=True)
class Import:
    """An import statement anywhere in a file: at the top, in a function, under TYPE_CHECKING."""

    module: str
    place: str


def files(*packages: str) -> list[Path]:
    return [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]


def place(path: Path, node: ast.stmt | ast.expr) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def package_of(path: Path) -> list[str]:
    """The package that a file is in, which relative imports start from."""
    return list(path.relative_to(ROOT).parent.parts)


@cache
def parsed(text: str) -> ast.Module:
    """The syntax tree of a file, which several tests walk."""
    return ast.parse(text)


def imports(path: Path, source: str | None = None) -> Iterator[Import]:
    tree = parsed(path.read_text() if source is None else source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, place(path, node))
        elif isinstance(node, ast.ImportFrom):
            above = package_of(path)[: len(package_of(path)) - node.level + 1] if node.level else []
            yield Import(".".join([*above, *(node.module or "").split(".")]).strip("."), place(path, node))
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name | ast.Attribute)
            and (node.func.id if isinstance(node.func, ast.Name) else node.func.attr) in ("__import__", "import_module")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield Import(str(node.args[0].value), place(path, node))


def allowed(path: Path) -> set[str]:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    package = max((name for name in MAY_IMPORT if f"{module}.".startswith(f"{name}.")), key=len)
    return MAY_IMPORT[package]


def wrong_direction(path: Path, source: str | None = None) -> list[str]:
    ours = {*LAYERS, "tests"}
    return [
        f"{found.place} imports {found.module}"
        for found in imports(path, source)
        if found.module.split(".")[0] in ours - allowed(path)
    ]


def outside_world(path: Path, source: str | None = None) -> list[str]:
    """Uses of the outside world, which an engine must not have: imports, wall clocks, NumPy's global random source."""
    text = path.read_text() if source is None else source
    problems = [
        f"{found.place} imports {found.module}"
        for found in imports(path, text)
        if found.module.split(".")[0] in KAFKA | OUTSIDE_WORLD
    ]
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Attribute) and node.attr in WALL_CLOCK:
            problems.append(f"{place(path, node)} reads a clock: {ast.unparse(node)}")
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("np.random", "numpy.random"):
            problems.append(f"{place(path, node)} uses chance: {ast.unparse(node)}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("open", "print"):
            problems.append(f"{place(path, node)} calls {node.func.id}")
    return problems


def test_imports_point_one_way() -> None:
    found = files(*LAYERS)
    assert len(found) > 50
    assert [problem for path in found for problem in wrong_direction(path)] == []


def test_the_engine_knows_no_outside_world() -> None:
    assert [problem for path in files("operators") for problem in outside_world(path)] == []


def test_schemas_know_no_kafka() -> None:
    problems = [
        f"{found.place} imports {found.module}"
        for path in files("schemas")
        for found in imports(path)
        if found.module.split(".")[0] in KAFKA
    ]
    assert problems == []


MODULES_AT_MOST = 16
CATALOGUES = {"operators/kernels"}
"""Folders of one file per thing, where more files are no harder to find one's way in."""


def modules() -> dict[str, Path]:
    """Weir's modules by dotted name; a package is its `__init__`."""
    found = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files(*LAYERS)}
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


@cache
def import_graph() -> dict[str, set[str]]:
    """Which modules each module imports, wherever in the file."""
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        reached = graph.setdefault(name, set())
        for node in ast.walk(parsed(path.read_text())):
            if isinstance(node, ast.Import):
                reached |= {alias.name for alias in node.names if alias.name in known}
            elif isinstance(node, ast.ImportFrom) and node.module in known:
                below = {f"{node.module}.{alias.name}" for alias in node.names}
                reached |= (below & set(known)) | ({node.module} if below - set(known) else set())
    return graph


def subsystem(module: str) -> str:
    """The package of a module, at most two names deep: `operators.spill.cleanup.offline` is of `operators.spill`."""
    return ".".join(module.split(".")[:-1][:2])


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The nodes of a circle; empty where there is none."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for other in sorted(graph.get(node, ())):
            found = visit(other, [*path, node])
            if found:
                return found
        done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := visit(node, []))), [])


def test_no_circle_between_modules() -> None:
    assert circle(import_graph()) == []


def test_no_circle_between_packages() -> None:
    packages = {name for name, path in modules().items() if path.name == "__init__.py"}
    between: dict[str, set[str]] = {}
    for name, reached in import_graph().items():
        if name not in packages:
            own = between.setdefault(subsystem(name), set())
            own |= {subsystem(other) for other in reached - packages} - {subsystem(name)}
    assert circle(between) == []


def test_a_circle_is_seen() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_folders_stay_small() -> None:
    """A folder that one cannot take in at a look has a second idea in it."""
    counts: dict[str, int] = {}
    for path in modules().values():
        folder = str(path.parent.relative_to(ROOT))
        counts[folder] = counts.get(folder, 0) + (path.name != "__init__.py")
    assert {folder: n for folder, n in counts.items() if n > MODULES_AT_MOST and folder not in CATALOGUES} == {}


def test_every_package_says_what_it_is_for() -> None:
    for path in files(*LAYERS):
        if path.name == "__init__.py":
            assert ast.get_docstring(parsed(path.read_text())), f"{path} has no docstring"


KERNELS = ("operators/kernels", "schemas/codecs/kernels")


def beside_kernels(path: Path, source: str | None = None) -> list[str]:
    """What a kernel file uses that `schemas.compiled` does not follow: anything of Weir's but kernels beside it and
    types."""
    beside = {".".join([*package_of(path), other.stem]) for other in path.parent.glob("*.py")}
    problems = []
    for node in ast.walk(parsed(path.read_text() if source is None else source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            module = node.module or "" if isinstance(node, ast.ImportFrom) else names[0]
            good = node.col_offset == 0 and module in {"schemas.compiled", *beside}
            if module == "schemas.columns":
                good = all(get_origin(getattr(columns, name)) is np.ndarray for name in names)
            if module.split(".")[0] in LAYERS and not good:
                problems.append(f"{place(path, node)} imports {', '.join(names)} of {module}")
            if module.split(".")[0] == "numba":
                problems.append(f"{place(path, node)} imports numba")
    return problems


def test_kernels_use_nothing_that_their_caches_do_not_mind() -> None:
    found = files(*KERNELS)
    assert len(found) > 20
    assert [problem for path in found for problem in beside_kernels(path)] == []


@pytest.mark.parametrize(
    "source",
    [
        "from operators.data.tuples import FOREVER",
        "from schemas.columns import I64, Batch",
        "import operators.data.tuples",
        "from operators.kernels import hashing",
        "def late():\n    from operators.kernels.hashing import U64",
        "from numba import njit",
    ],
)
def test_what_a_cache_would_not_mind_is_seen(source: str) -> None:
    assert beside_kernels(ROOT / "operators/kernels/index.py", source) != []


def test_every_module_is_named_for_an_idea() -> None:
    modules = [path for path in files(*LAYERS, "tests") if path.stem.removeprefix("test_") in NAMELESS]
    packages = [path for path in (ROOT / layer for layer in LAYERS) for path in path.rglob("*/")]
    assert modules == []
    assert [path for path in packages if path.name in NAMELESS] == []


def test_package_files_only_re_export() -> None:
    """`__init__.py` holds a docstring, imports and `__all__`, nothing that would have a better place."""
    kinds = (ast.Import, ast.ImportFrom)
    for path in files(*LAYERS):
        if path.name != "__init__.py":
            continue
        for node in parsed(path.read_text()).body:
            text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            names = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            assert text or names or isinstance(node, kinds), place(path, node)


def test_jobs_and_benchmarks_import_no_command() -> None:
    """Commands import them: the other way round would be a cycle."""
    problems = [
        f"{found.place} imports {found.module}"
        for path in files("ops")
        for found in imports(path)
        if f"{found.module}.".startswith("services.commands.")
    ]
    assert problems == []


@pytest.mark.parametrize(
    ("where", "source"),
    [
        ("schemas/query.py", "from operators.engine.engine import Engine"),
        ("schemas/codecs/encode.py", "def f():\n    import services.batch.query_run"),
        ("schemas/codecs/encode.py", "from ...operators import engine"),
        ("operators/engine/engine.py", "from services import run"),
        ("operators/kernels/index.py", "import ops.bench"),
        ("services/worker/worker.py", "from ops.demo.show import demonstrate"),
        ("services/batch/query_run.py", "if TYPE_CHECKING:\n    from ops.bench import report"),
        ("services/batch/query_run.py", "importlib.import_module('ops.bench')"),
        ("services/commands/run/command.py", "from tests.oracle import evaluate"),
    ],
)
def test_an_import_in_the_wrong_direction_is_seen(where: str, source: str) -> None:
    assert wrong_direction(ROOT / where, source)


@pytest.mark.parametrize(
    ("where", "source"),
    [
        ("operators/engine/engine.py", "from schemas.query import Query"),
        ("services/worker/worker.py", "from operators.engine.engine import Engine"),
        ("services/commands/demo.py", "def f():\n    from ops.demo.show import demonstrate"),
        ("ops/bench/engine.py", "from services.batch.query_run import Run"),
    ],
)
def test_an_import_in_the_right_direction_is_not(where: str, source: str) -> None:
    assert not wrong_direction(ROOT / where, source)


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os",
        "from threading import Lock",
        "import aiokafka",
        "from confluent_kafka.admin import AdminClient",
        "def f():\n    import random",
        "rng = np.random.default_rng(1)",
        "at = datetime.now(UTC)",
        "open('state')",
    ],
)
def test_a_touch_of_the_outside_world_is_seen(source: str) -> None:
    assert outside_world(ROOT / "operators/engine/engine.py", source)
