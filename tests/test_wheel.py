"""Builds the wheel, installs it in an environment of its own, and uses it as a user would, away from the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("operators", "schemas", "services", "ops", "pyproject.toml", "README.md", "LICENSE")
TIMEOUT_S = 240
QUERY = """
CREATE STREAM a (k BIGINT, at TIMESTAMP) WITH (topic = 'a', format = 'json', timestamp = 'at');
CREATE STREAM b (k BIGINT, at TIMESTAMP) WITH (topic = 'b', format = 'json', timestamp = 'at');
INSERT INTO 'out' SELECT A.k AS k FROM a A [RANGE 1 SECOND], b B [RANGE 1 SECOND] WHERE A.k = B.k;
"""


def run(*command: str | Path, folder: Path, **env: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("WEIR_", "PYTHONPATH"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=clean | env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy: a build leaves folders beside its sources, and an old one could hide a missing
    file."""
    copy = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, copy / name)
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", copy / "dist", "."),
        folder=copy,
    )
    (built,) = (copy / "dist").glob("weir_streams-*.whl")
    return built


@pytest.fixture(scope="module")
def weir(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`weir` in an environment with the wheel, whose dependencies are those of this environment."""
    home = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", home, folder=home)
    site = next((home / "lib").glob("python*")) / "site-packages"
    installed = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    run(
        *(sys.executable, "-m", "pip", "--python", home / "bin/python", "install", "--quiet", "--no-deps", wheel),
        folder=home,
    )
    # Dependencies come from this environment, but Weir must not: its editable install is a .pth file, which only
    # `site` reads, and only in folders that it knows as site-packages.
    (site / "dependencies.pth").write_text(f"import sys; sys.path.append({str(installed)!r})\n")
    return home / "bin/weir"


def test_what_is_in_the_wheel(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    packages = {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert packages == {"operators", "schemas", "services", "ops"}
    for data in ("schemas/language/grammar.lark", "ops/kafka/pom.xml", "ops/demo/check.sql"):
        assert data in names
    modules = {str(path.relative_to(ROOT)) for name in packages for path in (ROOT / name).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules


@pytest.mark.deep
def test_the_wheel_runs_a_query(weir: Path, tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text(QUERY)
    (tmp_path / "a.jsonl").write_text('{"k": 1, "at": 1000}\n{"k": 2, "at": 1100}\n')
    (tmp_path / "b.jsonl").write_text('{"k": 2, "at": 1200}\n')
    cache = os.environ.get("WEIR_CACHE")
    env = {"WEIR_CACHE": cache} if cache else {}
    where = ("--source", "a=a.jsonl", "--source", "b=b.jsonl")
    printed = run(weir, "run", "q.sql", *where, "--out", "-", folder=tmp_path, **env)
    assert [line for line in printed.splitlines() if '"k"' in line] != []
    assert "(A B)" in run(weir, "explain", "q.sql", folder=tmp_path, **env)
    assert "worker" in run(weir, "--help", folder=tmp_path)
    at = run(weir.parent / "python", "-c", "import services; print(services.__file__)", folder=tmp_path)
    assert str(weir.parent.parent) in at
