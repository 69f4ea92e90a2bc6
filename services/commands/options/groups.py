"""Options that are written once as a group and given to a command as one object.

    @with_options("options", RunOptions)
    def run(*, options: RunOptions) -> None: ...

has the parameters of `RunOptions` as options in place of `options`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

Command = Callable[..., None]


def with_options(parameter: str, build: Callable[..., object]) -> Callable[[Command], Command]:
    """Replace a parameter of a command by the options that it is built from.

    Args:
        parameter: its name.
        build: a function or dataclass whose parameters are declared as Typer options.
    """

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters
        options = inspect.signature(build, eval_str=True).parameters

        @functools.wraps(command)
        def wrapped(**given: Any) -> None:
            built = build(**{name: given.pop(name) for name in options})
            command(**given, **{parameter: built})

        parameters = [p for name, p in own.items() if name != parameter]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*parameters, *options.values())]
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapped

    return decorate
