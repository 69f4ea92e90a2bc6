"""Compiles `.proto` texts with protoc, as `grpcio-tools` brings it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from schemas.errors import DataError
from schemas.protobuf.descriptors import MAIN, ProtobufSchema, parse_set

DEADLINE_S: Final = 30.0


def compile_text(text: str, imported: Sequence[tuple[str, str]] = ()) -> ProtobufSchema:
    """Return the schema of a text. Cost: about 0.2 s, in a process of its own.

    Args:
        imported: names and texts of the files that it imports, as it names them.

    Raises:
        DataError: protoc refuses it; says what protoc says.
    """
    with tempfile.TemporaryDirectory(prefix="weir-proto-") as name:
        folder = Path(name)
        for file, content in (*imported, (MAIN, text)):
            path = PurePosixPath(file)
            if path.is_absolute() or ".." in path.parts or not path.parts:
                raise DataError(f"broken Protobuf schema: it imports {file!r}")
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content)
        out = folder / "weir.descriptors"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", "--include_imports"]
        try:
            done = subprocess.run(
                [*command, f"--descriptor_set_out={out}", MAIN],
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                cwd=folder,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DataError(f"broken Protobuf schema: protoc takes more than {DEADLINE_S:g} s") from None
        if done.returncode != 0 or not out.exists():
            lines = [line for line in done.stderr.splitlines() if "warning" not in line] or ["protoc failed"]
            raise DataError(f"broken Protobuf schema: {'; '.join(lines[:3])}")
        return parse_set(out.read_bytes())
