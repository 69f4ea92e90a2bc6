"""Finds what the development broker needs: a recent Java (`find_java`), and Kafka's jars in a cache (`kafka_jars`).

Maven fetches the jars, once per version, as `ops/kafka/pom.xml` lists them; only that file names the version. They are
stored in `<cache>/kafka/<version>`, where the cache is `WEIR_CACHE`, or `weir` under the XDG cache folder. The folder
is renamed to its place when it is complete, so that a broken download or two simultaneous first starts leave no
incomplete cache.
"""

import os
import re
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

from schemas.errors import BrokerError, UsageError

OLDEST_JAVA = 17
_RESOURCES = Path(__file__).resolve().parents[2] / "ops" / "kafka"
POM = _RESOURCES / "pom.xml"
LOG_SETTINGS = _RESOURCES / "log4j2.properties"
_MAVEN_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"


def kafka_version() -> str:
    """The pinned Kafka release, read from the POM."""
    element = ElementTree.parse(POM).find("{*}properties/{*}kafka.version")
    if element is None or not element.text:
        raise BrokerError(f"no kafka.version in {POM}")
    return element.text.strip()


def find_java() -> Path:
    """The first Java of `JAVA_HOME` and `PATH` that is new enough for Kafka 4.

    Raises:
        BrokerError: none is; the message says what was found and what to install.
    """
    candidates: list[Path] = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path))
    too_old: list[str] = []
    for java in candidates:
        version = _java_version(java)
        if version >= OLDEST_JAVA:
            return java
        if version:
            too_old.append(f"{version} at {java}")
    found = f", found {', '.join(too_old)}" if too_old else ", found none in JAVA_HOME or PATH"
    raise BrokerError(
        f"the development broker needs Java {OLDEST_JAVA} or newer{found}; "
        f"install it (Debian, Ubuntu: apt-get install openjdk-{OLDEST_JAVA}-jre-headless)"
    )


def _java_version(java: Path) -> int:
    """The feature release of a Java executable; 0 if it does not run."""
    try:
        shown = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', shown.stderr + shown.stdout)
    return int(match.group(1)) if match else 0


def cache_dir() -> Path:
    """Where Weir keeps downloads: `WEIR_CACHE`, else `weir` under `XDG_CACHE_HOME`, else `~/.cache/weir`."""
    if chosen := os.environ.get("WEIR_CACHE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "weir"


def kafka_jars(java: Path, progress: Callable[[str], None]) -> Path:
    """The folder with the jars of the pinned Kafka release, fetched by Maven if the cache lacks them.

    Args:
        java: runs Maven, which might otherwise choose an older Java.
        progress: called with a short text while jars are fetched.

    Raises:
        BrokerError: Maven is missing or could not fetch a jar.
    """
    version = kafka_version()
    folder = cache_dir() / "kafka" / version
    if ":" in str(folder):
        raise UsageError(f"the cache folder must have no ':' in its path, got {folder} (set WEIR_CACHE)")
    pom = POM.read_bytes()
    kept_pom = folder / "pom.xml"
    if kept_pom.is_file() and kept_pom.read_bytes() == pom:
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerError(
            f"Maven is needed to fetch Kafka {version} once, and there is no mvn in PATH; "
            "install it (Debian, Ubuntu: apt-get install maven)"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f"{version}.", dir=folder.parent))
        try:
            _fetch(maven, java, fresh, version, progress)
            (fresh / "pom.xml").write_bytes(pom)
            fresh.chmod(0o755)
            _replace(folder, fresh, pom)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise BrokerError(f"cannot keep Kafka's jars in {folder}: {error}") from error
    return folder


def _replace(folder: Path, fresh: Path, pom: bytes) -> None:
    """Rename `fresh` to `folder`. The jars of another POM are replaced, those of a simultaneous fetch stay."""
    kept_pom = folder / "pom.xml"
    if folder.exists() and not (kept_pom.is_file() and kept_pom.read_bytes() == pom):
        shutil.rmtree(folder)
    try:
        fresh.rename(folder)
    except OSError:
        if not kept_pom.is_file():
            raise


def _fetch(maven: str, java: Path, target: Path, version: str, progress: Callable[[str], None]) -> None:
    """Let Maven copy every runtime jar of the POM into `target`."""
    environment = dict(os.environ)
    java_home = java.resolve().parent.parent
    if (java_home / "bin" / "java").exists():
        environment["JAVA_HOME"] = str(java_home)
    command = [maven, "-B", "-f", str(POM), _MAVEN_GOAL, f"-DoutputDirectory={target}"]
    progress(f"fetching Kafka {version} with Maven")
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
        jars = 0
        errors: list[str] = []
        try:
            for line in process.stdout:
                if "Downloaded from" in line and ".jar" in line:
                    jars += 1
                    progress(f"fetching Kafka {version} with Maven: {jars} jars")
                if "[ERROR]" in line:
                    errors.append(line.split("[ERROR]", 1)[1].strip())
            code = process.wait()
        except BaseException:
            process.kill()
            raise
    if code != 0:
        reason = errors[0] if errors else f"exit code {code}"
        raise BrokerError(f"Maven could not fetch Kafka {version}: {reason}")
    if not any(target.glob(f"kafka_*-{version}.jar")):
        raise BrokerError(f"Maven left no Kafka {version} jar in {target}")
