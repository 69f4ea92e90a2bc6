"""The manual holds: its commands print what it shows, its links lead somewhere, its names exist.

The manual is README.md and the pages below ops/docs. Commands of the tutorial and of the history page are run; the
command reference is compared with the command line.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from schemas.language.functions import FUNCTIONS
from services.broker import broker as brokers
from services.broker import registry as registries
from services.broker.background import free_port
from services.broker.kafka_jars import kafka_version
from services.process.metrics import WorkerMetrics
from services.reference import PAGE, PARTS, ROOT, renewed

README = ROOT / "README.md"
DOCS = ROOT / "ops/docs"
MANUAL = (README, *sorted(DOCS.glob("*.md")))
"""The pages whose names are checked."""

LINKED = (*MANUAL, ROOT / "tests/README.md", ROOT / "tests/torture/README.md", ROOT / "CHANGELOG.md")
"""The pages whose links are checked."""

README_LINES = 250
DEADLINE_S = 300

OTHER_OPTIONS = {"--scale", "--profile", "--detach", "--help"}
"""Options that the manual names and that are not in the command reference."""

OTHER_CLASSES = {"WriteBatch"}
"""Classes that the manual names and that belong to other programs."""


@dataclass(frozen=True)
class Step:
    """A ```bash block, and the block of another language that follows it and shows what it prints."""

    commands: str
    shown: str | None


def text_of(page: str) -> str:
    return (DOCS / page).read_text()


def section(title: str, text: str) -> str:
    """The text below a heading of the second level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found.group(1)


def tutorial_steps() -> list[Step]:
    return steps(section("Five minutes", README.read_text()))


def without_code(text: str) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    seen: Counter[str] = Counter()
    out = set()
    for heading in re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        out.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return out


@cache
def sources() -> str:
    """The source text of all layers, of the tests and of docker-compose.yml."""
    folders = (ROOT / name for name in ("schemas", "operators", "services", "ops", "tests"))
    modules = [path for folder in folders for path in folder.rglob("*.py")]
    return "".join(path.read_text() for path in (*modules, ROOT / "docker-compose.yml"))


def steps(text: str) -> list[Step]:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    out: list[Step] = []
    for number, (language, body) in enumerate(blocks):
        if language == "bash":
            after = blocks[number + 1] if number + 1 < len(blocks) else ("bash", "")
            out.append(Step(body, after[1] if after[0] in ("text", "json") else None))
    return out


def run_steps(tutorial: list[Step], folder: Path) -> list[str]:
    """Run all blocks in one shell, as a reader would who pastes them; returns what each prints."""
    mark = uuid.uuid4().hex
    script = "".join(f"{step.commands}echo {mark}\n" for step in tutorial)
    port = str(free_port())
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}",
        "WEIR_BROKER_PORT": port,
        "WEIR_REGISTRY_PORT": str(free_port(int(port))),
        "WEIR_BOOTSTRAP": f"127.0.0.1:{port}",
    }
    if cache := os.environ.get("WEIR_CACHE"):
        environment["WEIR_CACHE"] = cache
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        log = folder / "worker.log"
        assert done.returncode == 0, done.stderr + (log.read_text() if log.exists() else "")
    finally:
        registries.stop(folder / ".weir/registry")
        brokers.stop(folder / ".weir/broker")
    printed = done.stdout.split(f"{mark}\n")
    assert printed.pop() == ""
    return printed


@pytest.mark.kafka
def test_the_tutorial_runs_and_prints_what_it_shows(tmp_path: Path) -> None:
    tutorial = tutorial_steps()
    assert len(tutorial) > 5
    for step, printed in zip(tutorial, run_steps(tutorial, tmp_path), strict=True):
        if step.shown is not None:
            assert printed == step.shown, step.commands


@pytest.mark.kafka
def test_the_commands_for_avro_and_protobuf_print_what_is_shown(tmp_path: Path) -> None:
    tutorial = steps(text_of("formats.md"))
    assert sum(step.shown is not None for step in tutorial) == 2
    for step, printed in zip(tutorial, run_steps(tutorial, tmp_path), strict=True):
        if step.shown is not None:
            assert printed == step.shown, step.commands


@pytest.mark.slow
def test_the_commands_over_history_print_what_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    files = [step for step in tutorial_steps() if step.commands.startswith("cat >")][:2]
    history = steps(text_of("history.md"))
    assert sum(step.shown is not None for step in history) == 2
    for step, printed in zip(history, run_steps([*files, *history], tmp_path)[len(files) :], strict=True):
        if step.shown is not None:
            assert printed == step.shown, step.commands


def test_every_block_of_commands_is_run() -> None:
    """Blocks that are marked bash are those that the tests above run; and some of them show their output."""
    running = {README: tutorial_steps()}
    running |= {DOCS / name: steps(text_of(name)) for name in ("formats.md", "history.md")}
    for page in LINKED:
        assert len(steps(page.read_text())) == len(running.get(page, [])), page.name
    assert sum(step.shown is not None for step in running[README]) >= 6


@pytest.mark.parametrize("path", PARTS, ids=lambda path: path.name)
def test_the_generated_parts_are_those_of_the_code(path: Path) -> None:
    """Commands with their options, and what cannot be combined."""
    assert renewed(path) == path.read_text(), "python -m services.reference rewrites it"


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) < README_LINES


def test_every_page_is_found_from_the_readme_and_says_what_it_answers() -> None:
    readme = README.read_text()
    assert len(MANUAL) > 10
    for page in MANUAL[1:]:
        assert f"](ops/docs/{page.name})" in readme, page.name
        assert re.match(r"# .+\n\nThis page [^.]+\.\n\n", page.read_text()), page.name


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_their_anchors_exist(page: Path) -> None:
    text = without_code(page.read_text())
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith(("http://", "https://"))]
    for link in links:
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text()), link


def test_named_targets_are_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    named = {
        name
        for page in MANUAL
        for pair in re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", page.read_text(), re.MULTILINE)
        for name in pair
        if name
    }
    assert {"demo", "test"} <= named
    assert named <= targets


@pytest.mark.parametrize("page", MANUAL, ids=lambda page: page.stem)
def test_named_files_exist(page: Path) -> None:
    paths = re.findall(r"`((?:schemas|operators|services|ops|tests)/[\w/.-]*)`", page.read_text())
    assert [name for name in paths if not (ROOT / name).exists()] == []


def test_named_metrics_exist() -> None:
    metrics = WorkerMetrics("query")
    metrics.of("0")
    page = metrics.page().decode()
    named = {name for path in MANUAL for name in re.findall(r"\bweir_\w+", path.read_text())}
    assert len(named) > 20
    assert [name for name in sorted(named) if name not in page] == []


def test_named_variables_exist() -> None:
    known = sources()
    text = "".join(page.read_text() for page in MANUAL)
    named = {*re.findall(r"`([A-Z][A-Z]+_[A-Z_]+)`", text), *re.findall(r"\bWEIR_\w*[A-Z]\b", text)}
    assert len(named) > 20
    assert [name for name in sorted(named) if name not in known] == []


def test_named_options_exist() -> None:
    reference = re.findall(r"^\| `([^` ]+)", PAGE.read_text(), re.MULTILINE)
    known = {option for spelled in reference for option in spelled.split("/")} | OTHER_OPTIONS
    for page in MANUAL:
        for code in re.findall(r"`([^`\n]+)`", without_code(page.read_text())):
            if "pytest" not in code and "python" not in code:
                assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", code)) <= known, (page.name, code)


@pytest.mark.parametrize("page", MANUAL, ids=lambda page: page.stem)
def test_named_classes_and_functions_exist(page: Path) -> None:
    """Names of classes (`Engine`, where a capital follows later), of functions (`begin()`) and of modules."""
    known = sources()
    code = re.findall(r"`([^`\n]+)`", without_code(page.read_text()))
    classes = {name for text in code for name in re.findall(r"^[A-Z][a-z]+(?:[A-Z][a-z]+)+$", text)}
    functions = {name for text in code for name in re.findall(r"^([a-z_]\w*)\(\)$", text)}
    modules = {text for text in code if re.fullmatch(r"(?:schemas|operators|services|ops|tests)(?:\.[a-z_]+)+", text)}
    assert [name for name in classes - OTHER_CLASSES if not re.search(rf"^class {name}\b", known, re.MULTILINE)] == []
    assert [name for name in functions if not re.search(rf"\bdef {name}\(", known)] == []
    for name in modules:
        path = ROOT / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").exists(), name


def test_every_function_of_the_language_is_named() -> None:
    table = text_of("language.md").partition("\n### Functions\n")[2].partition("\n### ")[0]
    assert [name for name in FUNCTIONS if f"`{name}(" not in table] == []


def test_the_broker_that_guarantees_are_tested_on_is_the_pinned_one() -> None:
    assert f"Apache Kafka {kafka_version()}" in section("What is guaranteed", text_of("guarantees.md"))
