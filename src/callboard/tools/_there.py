"""What runs in a worker in place of a tool's function. Loads no LangChain: not each worker needs it."""

import sys
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from callboard._calls._of_body import marked

_SCRATCHPAD = "__pregel_scratchpad"


def run_with_config(fn: Callable[..., Any], config: Mapping[str, Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a plain function with the config that whatever it runs is to find.

    Raises:
        RuntimeError: if it asks a person, who cannot be asked from here.
        BaseException: what the function raises.
    """
    with marked(), _config(config):
        return fn(*args, **kwargs)


async def await_with_config(
    fn: Callable[..., Awaitable[Any]], config: Mapping[str, Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Run an async function with the config that whatever it runs is to find; raises what `run_with_config` does."""
    with marked(), _config(config):
        return await fn(*args, **kwargs)


@contextmanager
def _config(config: Mapping[str, Any]) -> Generator[None]:
    # It came with the module of the function, if anything there can look for a config.
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
