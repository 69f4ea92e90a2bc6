"""Reads query files, and checks the `--source` and `--table` options against the query."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

from schemas.errors import UsageError, listed
from schemas.language.columns import with_columns
from schemas.language.program import parse_program
from schemas.query import Field, Query, Stream
from services.formats.registry_access import RegistryAccess


def read_query(path: Path, name: str | None, access: RegistryAccess) -> Query:
    """The query of a file; `name` picks one by its sink if there are several.

    Args:
        access: how to reach the registry of streams that are declared without columns.

    Raises:
        UsageError: the file cannot be read, or has no query, or several.
        QueryError: the text is wrong; shows where.
        BrokerError: the registry does not answer.
    """
    return pick_query(query_text(path, access), name, str(path))


def read_queries(path: Path, name: str | None, access: RegistryAccess) -> tuple[Query, ...]:
    """All queries of a file, at least one; or only the query whose sink is `name`, if given.

    Raises:
        UsageError: the file cannot be read, or has no query, or none of that name.
        QueryError: the text is wrong; shows where.
        BrokerError: the registry does not answer.
    """
    text = query_text(path, access)
    queries = () if name is not None else parse_program(text).queries
    return queries or (pick_query(text, name, str(path)),)


def query_text(path: Path, access: RegistryAccess, group: Mapping[str, Sequence[Field]] | None = None) -> str:
    """The text of a file, with the columns of streams that are declared without.

    Args:
        group: for a group's queries, the columns of the streams that the group reads already. Then all columns of a
            stream are written, since its queries share it.

    Raises:
        UsageError: the file cannot be read.
        QueryError: the text is wrong; shows where.
        BrokerError: the registry does not answer.
    """
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read the query {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"the query {path} is not UTF-8 text: {error.reason} at byte {error.start}") from None

    def columns_of(stream: Stream) -> Sequence[Field]:
        # Imported here: Arrow comes with it, which `services.process.memory` prepares for, and takes its time.
        from services.formats.columns import SchemaColumns

        known = None if group is None else group.get(stream.name)
        return SchemaColumns(access, path.parent)(stream) if known is None else known

    return with_columns(text, columns_of, everything=group is not None)


def pick_query(text: str, name: str | None, place: str) -> Query:
    """The query of a text.

    Args:
        name: picks a query by its sink if there are several.
        place: describes the text in errors.

    Raises:
        UsageError: the text has no query, or several.
        QueryError: the text is wrong; shows where.
    """
    queries = parse_program(text).queries
    names = [query.name for query in queries]
    if not queries:
        raise UsageError(f"{place} declares streams but has no SELECT")
    if name is not None:
        if names.count(name) != 1:
            raise UsageError(f"--query {name}: {place} has {listed(names)}{_suggestion(name, names)}")
        return queries[names.index(name)]
    if len(queries) > 1:
        raise UsageError(f"{place} has {len(queries)} queries, pick one with --query: {listed(names)}")
    return queries[0]


def table_paths(query: Query, file: Path, given: Sequence[str]) -> dict[str, str]:
    """Path by table name, in the tables' order: as declared, beside the query's file, or from `NAME=PATH` options.

    Args:
        file: the query's file; if it does not exist, paths are relative to the working directory.

    Raises:
        UsageError: another form, an unknown or repeated name.
    """
    folder = file.parent if file.exists() else Path()
    paths = {table.name: str(folder / table.path) for table in query.tables()}
    seen: set[str] = set()
    for option in given:
        name, equals, path = option.partition("=")
        if not equals or not name or not path:
            raise UsageError(f"--table {option!r} is not of the form NAME=PATH")
        if name not in paths:
            hint = _suggestion(name, list(paths))
            alias = next((s.stream.name for s in query.sources if s.alias == name and s.is_static), None)
            if any(lookup.table.name == name for lookup in query.lookups):
                raise UsageError(
                    f"--table {name}: the rows of this table are in a topic; `weir run` reads their versions "
                    f"from --source {name}=PATH"
                )
            if alias is not None:
                hint = f"; '{name}' is an alias of table '{alias}'"
            reads = f"it reads {listed(list(paths))}" if paths else "it reads none"
            raise UsageError(f"--table {name}: the query reads no such table, {reads}{hint}")
        if name in seen:
            raise UsageError(f"--table {name} is given twice: {paths[name]} and {path}")
        seen.add(name)
        paths[name] = path
    return paths


def source_paths(query: Query, given: Sequence[str], *, complete: bool = True) -> dict[str, str]:
    """Path by stream name, in the streams' order, from `NAME=PATH` options.

    Args:
        complete: every stream of the query needs its source.

    Raises:
        UsageError: another form, an unknown, repeated or missing name, standard input twice.
    """
    names = [stream.name for stream in query.streams()]
    paths: dict[str, str] = {}
    for option in given:
        name, equals, path = option.partition("=")
        if not equals or not name or not path:
            raise UsageError(f"--source {option!r} is not of the form NAME=PATH")
        if name not in names:
            hint = _suggestion(name, names)
            table = next((t for t in query.tables() if t.name == name), None)
            alias = next((str(s.stream) for s in query.sources if s.alias == name), None)
            if table is not None:
                hint = f"; {table} has its path from CREATE TABLE, or from --table {name}=PATH"
            elif alias is not None:
                hint = f"; '{name}' is an alias of {alias}"
            raise UsageError(f"--source {name}: the query reads no such stream, it reads {listed(names)}{hint}")
        if name in paths:
            raise UsageError(f"--source {name} is given twice: {paths[name]} and {path}")
        if path == "-" and "-" in paths.values():
            raise UsageError(f"--source {name}: standard input is taken by another source already")
        paths[name] = path
    missing = [name for name in names if name not in paths]
    if missing and complete:
        raise UsageError(f"no source for {listed(missing)}: add --source {missing[0]}=PATH")
    return {name: paths[name] for name in names if name in paths}


def _suggestion(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, 1)
    return f", did you mean '{near[0]}'?" if near else ""
