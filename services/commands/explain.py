"""`weir explain`: the plan of a query, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from operators.plan import parse_plan
from services.query_files import read_query, source_paths


def explain(
    query: Annotated[
        Path, typer.Argument(help="File with CREATE STREAM statements and one SELECT.", metavar="QUERY.sql")
    ],
    plan: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_PLAN",
            metavar="PLAN",
            help="Join tree over the aliases, such as '((A B) C)'. Default: chosen.",
        ),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            metavar="NAME=PATH",
            envvar="WEIR_SOURCES",
            help="File of a stream: its first records give the statistics that are not declared. Optional.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--query",
            envvar="WEIR_QUERY",
            metavar="NAME",
            help="Which query, by its topic, if the file has several.",
        ),
    ] = None,
) -> None:
    """Print the plan of a query: joins, keys, where each predicate acts, windows, expected sizes."""
    bound = read_query(query, name)
    tree = parse_plan(plan, bound) if plan is not None else None
    paths = source_paths(bound, source or [], complete=False)

    # Imported here: the engine and Arrow take most of a second, which a wrong argument need not wait for.
    from operators.choose import choose_plan, declared_statistics, sample_statistics
    from operators.explain import explain as explained
    from services.files import SourceFile

    files = [SourceFile(stream, paths[stream.name]) for stream in bound.streams() if stream.name in paths]
    samples = {}
    for file in files:
        block = next(file.blocks(), None)
        if block is not None:
            samples[file.stream.name] = block.decoded.batch
    statistics = sample_statistics(bound, samples) if samples else declared_statistics(bound)
    typer.echo(explained(bound, tree or choose_plan(bound, statistics), statistics))
