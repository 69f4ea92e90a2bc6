"""`weir warmup`: after it nothing is left to compile, and the cache lies where it can be written."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.plan.plan import left_deep
from services.process import kernel_cache, warmup
from tests.cases import Case, aggregated, cases
from tests.feeding import engine_of, feed
from tests.profiles import examples

NOBODY = 65534


@pytest.fixture(scope="module")
def ready() -> dict[str, list[str]]:
    """What is compiled after a warm-up in this process."""
    warmup.warm_up()
    return warmup.signatures()


@pytest.mark.deep
@given(st.one_of(cases(), cases(), aggregated(cases())), st.sampled_from(["jisc", "hybmig-bsc"]))
@examples(150)
def test_random_queries_compile_nothing_more(ready: dict[str, list[str]], case: Case, strategy: str) -> None:
    engine = engine_of(case)
    other = left_deep([source.alias for source in reversed(case.query.sources)])
    engine.migrate(other, strategy, min((row["ts"] for part in case.rows.values() for row in part[0]), default=0) + 9)
    feed(engine, case.rows, case.push_sizes, case.epoch_ms)
    now = warmup.signatures()
    more = {name: sorted(set(now[name]) - set(ready[name])) for name in now}
    assert not {name: found for name, found in more.items() if found}


@pytest.mark.deep
def test_every_kernel_is_found(ready: dict[str, list[str]]) -> None:
    assert "operators.kernels.index.probe_keys" in ready
    assert "schemas.codecs.kernels.json_records.decode_json" in ready
    assert all(ready[name] for name in ready if name.startswith("operators.kernels.index."))


@pytest.mark.deep
def test_a_second_warm_up_compiles_nothing() -> None:
    done = subprocess.run([sys.executable, "-m", "services.cli", "warmup"], capture_output=True, text=True, check=True)
    assert ": 0 versions compiled" in done.stdout
    assert "cache: " in done.stdout


@pytest.mark.slow
def test_a_cold_warm_up_compiles_every_kernel_and_a_later_start_finds_them(tmp_path: Path) -> None:
    script = (
        "from services.process import warmup; done = warmup.warm_up(); "
        "left = [k for k, found in warmup.signatures().items() if not found]; print(done.compiled, *left)"
    )
    environment = {**os.environ, kernel_cache.VARIABLE: str(tmp_path)}
    outcomes = [
        subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    compiled, *left = outcomes[0]
    assert int(compiled) > 20
    # Others are called by kernels only; and the last when thousands of strings that were groups are forgotten.
    rare = ("fails", "slot_of", "take_value", "hash_groups")
    public = [name for name in (kernel.rsplit(".", 1)[1] for kernel in left) if not name.startswith("_")]
    assert [name for name in public if name not in rare] == []
    assert outcomes[1][0] == "0"


def test_the_command_line_loads_no_kernel_before_the_cache_is_chosen() -> None:
    script = "import sys, services.cli; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_good_folder_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernel_cache.VARIABLE, str(tmp_path / "new"))
    assert kernel_cache.prepare() is None
    assert os.environ[kernel_cache.VARIABLE] == str(tmp_path / "new")


def test_an_impossible_folder_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(kernel_cache.VARIABLE, str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("WEIR_CACHE", str(tmp_path / "own"))
    assert kernel_cache.prepare() == tmp_path / "own" / "kernels"
    assert os.environ[kernel_cache.VARIABLE] == str(tmp_path / "own" / "kernels")


def test_without_any_home_a_private_folder_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in the folder is run as code, so one that others could have filled is refused."""
    (tmp_path / "file").touch()
    monkeypatch.setenv(kernel_cache.VARIABLE, str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("WEIR_CACHE", str(tmp_path / "file" / "own"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shared = tmp_path / f"weir-kernels-{os.getuid()}"
    assert kernel_cache.prepare() == shared
    assert shared.stat().st_mode & 0o777 == 0o700
    shared.chmod(0o777)
    monkeypatch.setenv(kernel_cache.VARIABLE, str(tmp_path / "file" / "cache"))
    other = kernel_cache.prepare()
    assert other is not None
    assert other != shared
    assert other.stat().st_mode & 0o777 == 0o700


@contextmanager
def without_privilege() -> Iterator[None]:
    """Permissions bind root no more."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_cache_that_can_only_be_read_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba ignores a cache folder that it cannot write to, and compiles everything again."""
    with tempfile.TemporaryDirectory() as base:
        Path(base).chmod(0o755)
        baked, own = Path(base, "baked"), Path(base, "own")
        own.mkdir()
        own.chmod(0o777)
        (baked / "kernels_1").mkdir(parents=True)
        (baked / "kernels_1" / "probe.nbc").write_bytes(b"compiled")
        baked.chmod(0o555)
        monkeypatch.setenv(kernel_cache.VARIABLE, str(baked))
        monkeypatch.setenv("WEIR_CACHE", str(own))
        with without_privilege():
            assert kernel_cache.prepare() == own / "kernels"
        assert (own / "kernels" / "kernels_1" / "probe.nbc").read_bytes() == b"compiled"
        baked.chmod(0o755)
