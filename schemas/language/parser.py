"""Builds the parser of the query language from `grammar.lark`.

Lark takes 70 ms to compute the parser's tables. So a process that computes them writes them beside Python's own
compiled files, and later processes read them in 8 ms. The file's name is a digest of all that the tables are valid for.
It appears under that name only when it is complete, and begins with a digest of its contents. So a reader finds good
tables or computes them, however many processes write at once.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tempfile
from functools import cache
from pathlib import Path

import lark
from lark import Lark

GRAMMAR = Path(__file__).with_name("grammar.lark")
FOLDER = GRAMMAR.parent / "__pycache__"
PREFIX = "grammar."
SUFFIX = ".tables"


@cache
def parser() -> Lark:
    """The parser; built on first use, which commands that parse no query do not need."""
    text = GRAMMAR.read_text()
    valid_for = hashlib.sha256(f"{lark.__version__} {sys.version} {text}".encode()).hexdigest()
    file = FOLDER / f"{PREFIX}{valid_for[:16]}{SUFFIX}"
    return _read(file) or _build(text, file)


def _read(file: Path) -> Lark | None:
    """The parser with the tables of a file; None if it is not there, or damaged."""
    try:
        data = file.read_bytes()
    except OSError:
        return None
    digest, tables = data[:32], data[32:]
    return Lark.load(io.BytesIO(tables)) if hashlib.sha256(tables).digest() == digest else None


def _build(text: str, file: Path) -> Lark:
    """Compute the tables, and write them to a file in place of older ones. If the disk refuses, nothing is kept."""
    built = Lark(text, parser="lalr", lexer="contextual", propagate_positions=True, maybe_placeholders=True)
    buffer = io.BytesIO()
    built.save(buffer)
    tables = buffer.getvalue()
    try:
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=PREFIX, delete=False) as new:
            try:
                new.write(hashlib.sha256(tables).digest() + tables)
                new.close()
                os.replace(new.name, file)
            except BaseException:
                os.unlink(new.name)
                raise
        for other in file.parent.glob(f"{PREFIX}*{SUFFIX}"):
            if other != file:
                other.unlink(missing_ok=True)
    except OSError:
        pass
    return built
