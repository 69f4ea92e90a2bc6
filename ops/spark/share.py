"""The folder through which a driver and its executors exchange files: local, on a network, or in an object store.

Spark names folders by URI. The driver's own reads and writes go through Arrow's file systems, which support
`file`, `s3`, `gs` and `hdfs`. Spark calls `s3` `s3a`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from schemas.errors import StateError, UsageError

SUCCESS = "_SUCCESS"
"""The marker that Spark leaves in a folder that it has written completely, and so does `Share.done`."""


class Share:
    """A folder by path or URI."""

    def __init__(self, place: str) -> None:
        """Raises UsageError: it is not a folder that can be reached."""
        uri = place if "://" in place else Path(place).absolute().as_uri()
        scheme, _, rest = uri.partition("://")
        if scheme == "s3a":
            scheme = "s3"
        try:
            self._files, path = fs.FileSystem.from_uri(f"{scheme}://{rest}")
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UsageError(
                f"--share {place}: {error}; accepted: a folder, or a URI such as s3://bucket/folder"
            ) from None
        self._path = path.rstrip("/")
        # Spark has its own settings for what an object store's URI says after a question mark.
        self._uri = f"{'s3a' if scheme == 's3' else scheme}://{rest.partition('?')[0]}".rstrip("/")

    def uri(self, name: str) -> str:
        """Spark's URI of the folder `name` below this one."""
        return f"{self._uri}/{name}"

    def whole(self, name: str) -> bool:
        """Whether the folder `name` below this one has been written completely.

        Raises:
            StateError: the file system does not answer.
        """
        try:
            found: Any = self._files.get_file_info(f"{self._path}/{name}/{SUCCESS}")
        except (pa.ArrowException, OSError) as error:
            raise self._failed("read", name, error) from None
        return bool(found.type == fs.FileType.File)

    def begin(self, name: str) -> None:
        """Make the folder `name` below this one, empty.

        Raises:
            StateError: the file system refuses.
        """
        self.forget(name)
        try:
            self._files.create_dir(f"{self._path}/{name}", recursive=True)
        except (pa.ArrowException, OSError) as error:
            raise self._failed("write", name, error) from None

    def write(self, name: str, number: int, table: pa.Table, group_rows: int) -> None:
        """Add a Parquet file to a folder.

        Args:
            group_rows: rows of a row group.

        Raises:
            StateError: the file system refuses, in most cases because the disk is full.
        """
        path = f"{self._path}/{name}/part-{number:05d}.parquet"
        try:
            pq.write_table(table, path, filesystem=self._files, compression="none", row_group_size=group_rows)
        except (pa.ArrowException, OSError) as error:
            raise self._failed("write", name, error) from None

    def done(self, name: str) -> None:
        """Mark the folder as written completely.

        Raises:
            StateError: the file system refuses.
        """
        try:
            with self._files.open_output_stream(f"{self._path}/{name}/{SUCCESS}"):
                pass
        except (pa.ArrowException, OSError) as error:
            raise self._failed("write", name, error) from None

    def forget(self, name: str) -> None:
        """Delete the folder `name` below this one, if it is there.

        Raises:
            StateError: the file system refuses.
        """
        path = f"{self._path}/{name}".rstrip("/")
        try:
            if self._files.get_file_info(path).type == fs.FileType.Directory:
                self._files.delete_dir(path)
        except (pa.ArrowException, OSError) as error:
            raise self._failed("empty", name, error) from None

    def _failed(self, doing: str, name: str, error: Exception) -> StateError:
        why = " ".join(str(error).split())
        return StateError(f"cannot {doing} {self.uri(name)}: {why}; see that it has room and that Weir may use it")
