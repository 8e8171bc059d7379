"""`abatch` and `abatch_as_completed`: many inputs of a node or of an agent, run concurrently on asyncio and trio."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import get_config_list

from callboard._langgraph._outer_task import check_config
from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._protocol import Scope
from callboard._loops._task_stream import Outbox, TaskItems, Window
from callboard._records._policies import check_count
from callboard._util._errors import raise_first

_RUN_ELSEWHERE = ("run", "arun", "run_sync")
"""Names of the method that runs an agent in other libraries."""


class ManyInputs(Runnable[Any, Any]):
    """Base class of runnables whose `abatch` and `abatch_as_completed` run on asyncio and on trio."""

    if not TYPE_CHECKING:  # type checkers refuse unknown names, and go on to do so

        def __getattr__(self, name: str) -> Any:
            if name in _RUN_ELSEWHERE:
                remedy = "write invoke(...), or await ainvoke(...) in an async function"
                raise AttributeError(f"{type(self).__name__} has no method {name!r}: {remedy}", name=name, obj=self)
            # Raises the error of Python, or again that of a property.
            return object.__getattribute__(self, name)

    async def abatch(
        self,
        inputs: Sequence[Any],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """Run several inputs concurrently, and return the outputs in the order of the inputs.

        `config` is one for all inputs, or one for each; `max_concurrency` of the first limits the number of concurrent
        runs. With `return_exceptions`, errors stand in place of outputs; otherwise the first error cancels the other
        runs and is raised. `kwargs` are further arguments of `ainvoke`.
        """
        if not inputs:
            return []
        configs, permits = _configs_and_permits(config, len(inputs), default=len(inputs))
        outputs: list[Any] = [None] * len(inputs)

        def store(number: int, output: Any) -> None:
            outputs[number] = output
            permits.release()

        await self._run_inputs(inputs, configs, permits, store, return_exceptions=return_exceptions, options=kwargs)
        return outputs

    async def abatch_as_completed(
        self,
        inputs: Sequence[Any],
        config: RunnableConfig | Sequence[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> AsyncGenerator[tuple[int, Any]]:
        """Run several inputs concurrently, and yield the index and the output of each as soon as it has ended.

        At most `max_concurrency` inputs, by default 1,000, run or wait until the reader takes their outputs: a slow
        reader slows the runs down. A reader that stops early has to close the generator, such as with
        `contextlib.aclosing`. The runs are then cancelled, and have ended when `aclose()` of the generator returns.

        The arguments are those of `abatch`. An error is raised after the outputs that were ready before it.
        """
        if not inputs:
            return
        configs, permits = _configs_and_permits(config, len(inputs), default=DEFAULT_WINDOW)

        async def run(outbox: Outbox[tuple[int, Any]]) -> None:
            def put(number: int, output: Any) -> None:
                outbox.put((number, output))

            await self._run_inputs(inputs, configs, permits, put, return_exceptions=return_exceptions, options=kwargs)

        async with aclosing(TaskItems(run)) as numbered_outputs:
            async for numbered_output in numbered_outputs:
                permits.release()
                yield numbered_output

    async def _run_inputs(
        self,
        inputs: Sequence[Any],
        configs: Sequence[RunnableConfig],
        permits: Window,
        put: Callable[[int, Any], None],
        *,
        return_exceptions: bool,
        options: Mapping[str, Any],
    ) -> None:
        """Run each input while it holds a permit, and pass its output to `put`, whose caller releases the permit."""
        errors: list[BaseException] = []
        loop = current_loop()
        # trio begins the tasks in any order: each takes the next input when it begins.
        numbers = iter(range(len(inputs)))

        async def run(scope: Scope) -> None:
            with scope:
                number = next(numbers)
                try:
                    await permits.acquire()
                    put(number, await self.ainvoke(inputs[number], configs[number], **options))
                # Cancellation is no error of this run: it must reach the nursery.
                except loop.cancelled_class:
                    raise
                except BaseException as error:
                    if return_exceptions and isinstance(error, Exception):
                        put(number, error)
                        return
                    errors.append(error)
                    nursery.cancel()

        async with loop.nursery() as nursery:
            for _ in inputs:
                nursery.start(run, DEFAULT_GRACE)
        raise_first(errors)


DEFAULT_WINDOW = 1_000
"""Number of calls, or of inputs, that may run or wait for the reader of a stream of results."""


def _configs_and_permits(
    config: RunnableConfig | Sequence[RunnableConfig] | None, count: int, *, default: int
) -> tuple[list[RunnableConfig], Window]:
    """Return the configs of several inputs, and as many permits as `max_concurrency` of the first, or `default`."""
    for item in config if isinstance(config, (list, tuple)) else [config]:
        if item is not None:
            check_config(item)
    configs = get_config_list(config, count)
    concurrency = configs[0].get("max_concurrency")
    if concurrency is not None:
        check_count("config['max_concurrency']", concurrency, least=1)
    return configs, Window(default if concurrency is None else concurrency)
