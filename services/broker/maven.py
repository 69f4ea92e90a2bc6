"""Gets the files of the development servers from Maven, once per release, into a cache.

A POM lists the files of a release; only that file names the version. They are stored in `<cache>/<folder>/<version>`,
where the cache is `WEIR_CACHE`, or `weir` under the XDG cache folder. The folder is renamed to its place when it is
complete, so that a broken download or two simultaneous first starts leave no incomplete cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import BrokerError, UsageError

_MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin"


@dataclass(frozen=True, slots=True)
class Release:
    """A release of a server.

    Attributes:
        name: for messages.
        pom: lists its files, and has its version as `<folder>.version`.
        folder: of the cache.
        goal: of Maven's dependency plugin: `copy-dependencies`, or `copy` for what has none.
        expected: a pattern that one of the files matches; `{}` stands for the version.
        prepare: what to do with the folder of the files before it is used.
    """

    name: str
    pom: Path
    folder: str
    goal: str
    expected: str
    prepare: Callable[[Path], None] = lambda _: None

    def version(self) -> str:
        """The pinned version, read from the POM."""
        element = ElementTree.parse(self.pom).find(f"{{*}}properties/{{*}}{self.folder}.version")
        if element is None or not element.text:
            raise BrokerError(f"no {self.folder}.version in {self.pom}")
        return element.text.strip()

    def files(self, java: Path, progress: Callable[[str], None]) -> Path:
        """The folder with the files, fetched by Maven if the cache lacks them.

        Args:
            java: runs Maven, which might otherwise choose an older Java.
            progress: called with a short text while files are fetched.

        Raises:
            BrokerError: Maven is missing or could not fetch a file.
        """
        version = self.version()
        folder = cache_dir() / self.folder / version
        if ":" in str(folder):
            raise UsageError(f"the cache folder must have no ':' in its path, got {folder} (set WEIR_CACHE)")
        pom = self.pom.read_bytes()
        kept_pom = folder / "pom.xml"
        if kept_pom.is_file() and kept_pom.read_bytes() == pom:
            return folder
        maven = shutil.which("mvn")
        if maven is None:
            raise BrokerError(
                f"Maven is needed to fetch {self.name} {version} once, and there is no mvn in PATH; "
                "install it (Debian, Ubuntu: apt-get install maven)"
            )
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            fresh = Path(tempfile.mkdtemp(prefix=f"{version}.", dir=folder.parent))
            try:
                self._fetch(maven, java, fresh, version, progress)
                self.prepare(fresh)
                (fresh / "pom.xml").write_bytes(pom)
                fresh.chmod(0o755)
                _replace(folder, fresh, pom)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
        except OSError as error:
            raise BrokerError(f"cannot keep the files of {self.name} in {folder}: {error}") from error
        return folder

    def _fetch(self, maven: str, java: Path, target: Path, version: str, progress: Callable[[str], None]) -> None:
        """Let Maven copy every runtime file of the POM into `target`."""
        environment = dict(os.environ)
        java_home = java.resolve().parent.parent
        if (java_home / "bin" / "java").exists():
            environment["JAVA_HOME"] = str(java_home)
        command = [maven, "-B", "-f", str(self.pom), f"{_MAVEN_PLUGIN}:{self.goal}", f"-DoutputDirectory={target}"]
        progress(f"fetching {self.name} {version} with Maven")
        with subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            if process.stdout is None:
                raise BrokerError("Maven's output cannot be read")
            fetched = 0
            errors: list[str] = []
            try:
                for line in process.stdout:
                    if "Downloaded from" in line and (".jar" in line or ".gz" in line):
                        fetched += 1
                        progress(f"fetching {self.name} {version} with Maven: {fetched} files")
                    if "[ERROR]" in line:
                        errors.append(line.split("[ERROR]", 1)[1].strip())
                code = process.wait()
            except BaseException:
                process.kill()
                raise
        if code != 0:
            reason = errors[0] if errors else f"exit code {code}"
            raise BrokerError(f"Maven could not fetch {self.name} {version}: {reason}")
        if not any(target.glob(self.expected.format(version))):
            raise BrokerError(f"Maven left no file of {self.name} {version} in {target}")


def cache_dir() -> Path:
    """Where Weir keeps downloads: `WEIR_CACHE`, else `weir` under `XDG_CACHE_HOME`, else `~/.cache/weir`."""
    if chosen := os.environ.get("WEIR_CACHE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "weir"


def _replace(folder: Path, fresh: Path, pom: bytes) -> None:
    """Rename `fresh` to `folder`. The files of another POM are replaced, those of a simultaneous fetch stay."""
    kept_pom = folder / "pom.xml"
    if folder.exists() and not (kept_pom.is_file() and kept_pom.read_bytes() == pom):
        shutil.rmtree(folder)
    try:
        fresh.rename(folder)
    except OSError:
        if not kept_pom.is_file():
            raise
