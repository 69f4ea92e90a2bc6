"""Compiles `.proto` texts with protoc, as `grpcio-tools` brings it.

Texts come from registries. So protoc runs in a process of its own, which looks for no Python modules near the files,
and only files with plain names that end in `.proto` are written for it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from schemas.errors import DataError
from schemas.protobuf.descriptors import ProtobufSchema, own_name, parse_set, set_of

DEADLINE_S: Final = 30.0

_FILE: Final = re.compile(r"(?=.{1,200}\Z)([A-Za-z0-9_-][A-Za-z0-9_.-]*/)*[A-Za-z0-9_-][A-Za-z0-9_.-]*\.proto")


def compile_text(
    text: str, imported: Sequence[tuple[str, str]] = (), known: Sequence[tuple[str, bytes]] = ()
) -> ProtobufSchema:
    """Return the schema of a text. Cost: about 0.2 s, in a process of its own.

    Args:
        imported: names and texts of the files that it imports, as it names them.
        known: names and serialized `FileDescriptorProto`s of further files, which count where no text has the name.

    Raises:
        DataError: protoc refuses it; says what protoc says.
        OSError, RuntimeError: protoc cannot run here and now.
    """
    main = own_name([name for name, _ in imported])
    with tempfile.TemporaryDirectory(prefix="weir-proto-") as name:
        folder = Path(name) / "files"
        for file, content in (*imported, (main, text)):
            _write(folder, file, content)
        out, given = Path(name) / "weir.descriptors", Path(name) / "known.descriptors"
        command = [sys.executable, "-P", "-m", "grpc_tools.protoc", f"-I{folder}", "--include_imports"]
        if known:
            given.write_bytes(set_of([raw for _, raw in known]))
            command.append(f"--descriptor_set_in={given}")
        try:
            done = subprocess.run(
                [*command, f"--descriptor_set_out={out}", main],
                capture_output=True,
                timeout=DEADLINE_S,
                cwd="/",
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DataError(f"broken Protobuf schema: protoc takes more than {DEADLINE_S:g} s") from None
        said = done.stderr.decode(errors="replace")
        if done.returncode < 0 or "No module named" in said:
            raise RuntimeError(f"protoc cannot run: {said.strip() or f'signal {-done.returncode}'}")
        if done.returncode != 0 or not out.exists():
            lines = [line for line in said.splitlines() if "warning" not in line] or ["protoc failed"]
            raise DataError(f"broken Protobuf schema: {'; '.join(lines[:3])}")
        return parse_set(out.read_bytes())


def _write(folder: Path, name: str, text: str) -> None:
    if not _FILE.fullmatch(name):
        raise DataError(f"broken Protobuf schema: it imports {name[:100]!r}, which is no plain name of a .proto file")
    path = folder / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(text.encode())
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise DataError(f"broken Protobuf schema: several of its files are called {name!r}") from None
    except UnicodeEncodeError:
        raise DataError("broken Protobuf schema: it is no text") from None
