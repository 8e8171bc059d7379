"""Several inputs at once, on any event loop; LangChain's own `abatch` is asyncio's."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from anyio import CapacityLimiter, create_task_group
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import get_config_list


class ManyInputs(Runnable[Any, Any]):
    """A Runnable whose `abatch` runs on asyncio and trio."""

    async def abatch(
        self,
        inputs: Sequence[Any],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """Run for each of several inputs, at once.

        Args:
            inputs: each as `ainvoke` takes it.
            config: for all, or one for each; the first one's `max_concurrency` says how many run at a time.
            return_exceptions: whether an error takes the place of its output; otherwise the first error ends the
                others and is raised.
            kwargs: for `ainvoke`.
        """
        if not inputs:
            return []
        configs = get_config_list(config, len(inputs))
        width = configs[0].get("max_concurrency")
        places = nullcontext() if width is None else CapacityLimiter(width)
        outputs: list[Any] = [None] * len(inputs)
        errors: list[Exception] = []

        async def run(number: int) -> None:
            async with places:
                try:
                    outputs[number] = await self.ainvoke(inputs[number], configs[number], **kwargs)
                except Exception as error:
                    outputs[number] = error
                    if not return_exceptions:
                        errors.append(error)
                        tasks.cancel_scope.cancel()

        async with create_task_group() as tasks:
            for number in range(len(inputs)):
                tasks.start_soon(run, number)
        try:
            if errors:
                raise errors[0]
        finally:
            errors.clear()  # the traceback leads here, and must not lead back
        return outputs
