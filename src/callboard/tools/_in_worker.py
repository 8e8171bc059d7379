"""Wrappers that run a tool's function under the tool's LangChain config, in a worker.

They import no LangChain: many workers do not need it.
"""

import sys
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from callboard._calls._call_context import wrap_call_errors

_SCRATCHPAD = "__pregel_scratchpad"


def run_with_config(fn: Callable[..., Any], config: Mapping[str, Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a sync function under a LangChain config and return its result; `interrupt()` in it raises RuntimeError."""
    with wrap_call_errors(), _config(config):
        return fn(*args, **kwargs)


async def await_with_config(
    fn: Callable[..., Awaitable[Any]], config: Mapping[str, Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Run an async function under a LangChain config and return its result; `interrupt()` in it raises RuntimeError."""
    with wrap_call_errors(), _config(config):
        return await fn(*args, **kwargs)


@contextmanager
def _config(config: Mapping[str, Any]) -> Generator[None]:
    # If the body can read a config, its module has imported LangChain already.
    if (configs := sys.modules.get("langchain_core.runnables.config")) is not None:
        configs.var_child_runnable_config.set(config)
    try:
        yield
    except KeyError as error:
        if error.args != (_SCRATCHPAD,):
            raise
        raise RuntimeError(
            "interrupt() was called in a body that runs elsewhere, from where nobody can be asked. Ask before the "
            "call, by RequireApproval, or have the tool run here (no runs_in)"
        ) from error
