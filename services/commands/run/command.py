"""`weir run`: checks the options and runs one query or several."""

from __future__ import annotations

import sys

from schemas.durations import parse_duration
from schemas.errors import UsageError
from schemas.sizes import unit_hint
from services.commands.options.groups import with_options
from services.commands.options.registry import with_registry
from services.commands.run.one_query import run_query
from services.commands.run.options import Cleanup, ExecutorChoice, RunOptions
from services.commands.run.several_queries import run_queries
from services.commands.run.terminal import run_page
from services.files.query_files import read_queries
from services.formats.registry_access import RegistryAccess


@with_options("options", RunOptions)
@with_registry
def run(*, options: RunOptions, access: RegistryAccess) -> None:
    """Run a query over files and write its results, ordered by their timestamp `_ts`.

    The same files give the same bytes. Exit codes: 0 done; 2 the query or the arguments are wrong; 1 anything
    else; 130 interrupted.
    """
    _check_cleanup(options)
    if hint := unit_hint(options.memory):
        print(f"weir: --memory {hint}", file=sys.stderr)
    epoch_ms = parse_duration(options.epoch)
    if epoch_ms == 0:
        raise UsageError("--epoch 0s: an epoch is at least 1ms")
    queries = read_queries(options.query, options.name, access)
    with run_page(queries, options) as reports:
        if len(queries) > 1 or options.executor is ExecutorChoice.APART:
            run_queries(queries, options, epoch_ms, reports)
        else:
            run_query(queries[0], options, epoch_ms, reports)


def _check_cleanup(options: RunOptions) -> None:
    """Check the options about pending results, before anything is read.

    Raises:
        UsageError: they cannot work together; the message says why.
    """
    cleanup, folder = options.cleanup, options.spill_dir
    if options.memory is None:
        if cleanup is not Cleanup.LOCAL:
            raise UsageError(f"--cleanup {cleanup} has no effect without --memory, such as --memory 64MiB")
        return
    if folder is not None:
        from services.spill.backlog import check_free

        check_free(folder)
    if cleanup is Cleanup.NONE and folder is None:
        raise UsageError("--cleanup none leaves pending results in a folder: name it with --spill-dir DIR")
    if cleanup is Cleanup.SPARK:
        from ops.spark.session import check_installed, is_local

        check_installed()
        if folder is None and not is_local(options.spark):
            raise UsageError(f"--spill-dir is needed with --spark {options.spark}: a folder that all its machines see")
