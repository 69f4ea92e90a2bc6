"""Makes a Spark session for Weir's jobs: quiet, private, and gone when its work is done.

Spark's own log goes to a file beside the job's data, so it does not mix with the lines that a command prints. Java's
standard error, which Spark passes on unchanged, goes there too. The file is deleted with the folder: an error carries
the line that matters.

The files that a job shares with its executors lie in one folder: a temporary one for `local` masters, else one that the
user names and that all machines see.

Where the process has a session already, as in a notebook, jobs run on that session's Spark with settings of their own,
and leave it running.

Other settings, such as `spark.driver.memory`, are read from where Spark reads them, the file
`spark-defaults.conf` in SPARK_CONF_DIR.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.errors import BrokerError, StateError, UsageError
from services.broker.java import OLDEST_JAVA, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
LOG = "spark.log"
SPLIT_BYTES = 32 << 20
"""About how much of the input one task of a shuffle gets."""

_SETTINGS = {
    "spark.app.name": "weir",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # NULL where ANSI would raise: `ops.spark.expressions` relies on it.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
}


@contextmanager
def work_folder(master: str, given: Path | None) -> Iterator[Path]:
    """A fresh folder for files that driver and executors share; deleted in the end.

    Raises:
        UsageError: a cluster's executors do not see a temporary folder of this machine, and no other was given.
        StateError: the folder cannot be made.
    """
    if given is None and not is_local(master):
        raise UsageError(f"--work-dir is needed with --master {master}: a folder that all its machines see")
    try:
        if given is not None:
            given.mkdir(parents=True, exist_ok=True)
        # Executors have other working directories: a relative path would be another folder there.
        folder = Path(tempfile.mkdtemp(prefix="weir-spark-", dir=given)).absolute()
    except OSError as error:
        raise StateError(f"cannot make a folder for Spark in {given}: {error.strerror}") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_local(master: str) -> bool:
    """Whether Spark runs in this machine's driver alone."""
    return master.partition("[")[0] == "local"


@contextmanager
def spark_session(master: str, folder: Path, **settings: str) -> Iterator[SparkSession]:
    """A session, stopped in the end.

    Args:
        folder: for shuffles and the log.
        settings: of Spark, in addition to Weir's own; dots written as `__`.

    Raises:
        UsageError: pyspark or Java is not installed.
        StateError: Spark does not start.
    """
    check_installed()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    existing = SparkSession.getActiveSession()
    if existing is not None:
        session = existing.newSession()
        for name, value in _SETTINGS.items():
            if name.startswith("spark.sql."):
                session.conf.set(name, value)
        yield session
        return
    log = folder / LOG
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.master(master)
    chosen = {**_SETTINGS, "spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    if is_local(master):
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    chosen |= {name.replace("__", "."): value for name, value in settings.items()}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    try:
        with _standard_error_to(log):
            spark: SparkSession = builder.getOrCreate()
    except (PySparkException, OSError, RuntimeError) as error:
        raise StateError(f"Spark does not start at {master}: {_last_words(log) or error}") from None
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def check_installed() -> None:
    """Check that pyspark and a Java for it are installed, and let Spark find that Java.

    Raises:
        UsageError: one of them is not.
    """
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise UsageError(
            "this command runs on Spark, and pyspark is not installed; accepted: pip install 'weir-streams[spark]'"
        ) from None
    try:
        java = find_java()
    except BrokerError:
        raise UsageError(f"Spark needs Java {OLDEST_JAVA} or newer, and neither JAVA_HOME nor PATH has one") from None
    home = java.resolve().parent.parent
    if (home / "bin" / "java").exists():
        os.environ["JAVA_HOME"] = str(home)


def split_for(spark: SparkSession, size_bytes: int) -> None:
    """Set into how many parts shuffles split an input of that size."""
    parts = max(spark.sparkContext.defaultParallelism, -(-size_bytes // SPLIT_BYTES))
    spark.conf.set("spark.sql.shuffle.partitions", str(parts))


@contextmanager
def spark_errors(doing: str) -> Iterator[None]:
    """Turn an exception of Spark into an error of one line.

    Raises:
        StateError: a job has failed.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise StateError(f"{doing} failed in Spark: {lines[0] if lines else type(error).__name__}") from error


@contextmanager
def _standard_error_to(path: Path) -> Iterator[None]:
    """Make processes that start meanwhile write their standard error to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)


def _last_words(log: Path) -> str:
    """The last line of a log that is informative."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
