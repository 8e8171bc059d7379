"""Several inputs at once, on any event loop; LangChain's own `abatch` needs asyncio."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from anyio import CapacityLimiter
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import get_config_list

from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._protocol import Scope


class ManyInputs(Runnable[Any, Any]):
    """Runnable whose `abatch` runs on asyncio and trio."""

    async def abatch(
        self,
        inputs: Sequence[Any],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """Run several inputs concurrently, and return their outputs in order.

        Args:
            inputs: inputs as for `ainvoke`.
            config: one config for all inputs, or one for each. `max_concurrency` of the first limits the number of
                concurrent runs.
            return_exceptions: `True` to return errors in place of outputs. Otherwise the first error cancels the other
                runs and is raised.
            kwargs: further arguments of `ainvoke`.
        """
        if not inputs:
            return []
        configs = get_config_list(config, len(inputs))
        width = configs[0].get("max_concurrency")
        places = nullcontext() if width is None else CapacityLimiter(width)
        outputs: list[Any] = [None] * len(inputs)
        errors: list[BaseException] = []
        loop = current_loop()

        async def run(number: int, scope: Scope) -> None:
            with scope:
                try:
                    async with places:
                        outputs[number] = await self.ainvoke(inputs[number], configs[number], **kwargs)
                # Cancellation is no error of this run: it must reach the nursery.
                except loop.cancelled_class:
                    raise
                except BaseException as error:
                    if return_exceptions and isinstance(error, Exception):
                        outputs[number] = error
                        return
                    errors.append(error)
                    nursery.cancel()

        async with loop.nursery() as nursery:
            for number in range(len(inputs)):
                nursery.start(partial(run, number), DEFAULT_GRACE)
        try:
            if errors:
                raise errors[0]
        finally:
            errors.clear()  # the error's traceback refers to this frame: break the reference cycle
        return outputs
