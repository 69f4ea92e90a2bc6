"""`weir warmup`: compiles all kernels ahead of the first query."""

from __future__ import annotations

from typing import Annotated

import typer


def warmup(
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Compile again what is in the cache."),
    ] = False,
) -> None:
    """Compile all kernels ahead, so that the first query starts in a second and not in half a minute.

    They are kept in NUMBA_CACHE_DIR, else beside the installed files, else in the user's cache folder, for
    this version of Weir, Python and Numba and this model of processor.
    """
    from rich.console import Console

    from services.process.warmup import warm_up

    with Console(stderr=True).status("loading") as shown:
        done = warm_up(lambda step: shown.update(f"compiling: {step}"), fresh=fresh)
    typer.echo(
        f"{done.kernels} kernels ready in {done.seconds:.1f} s: {done.compiled} versions compiled, "
        f"{done.loaded} found in the cache"
    )
    for folder in done.folders:
        typer.echo(f"cache: {folder}")
