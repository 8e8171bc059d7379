"""Defective nodes, by the promise that they break; the explorer has to find each defect."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import sniffio
from langgraph.types import Command

from callboard import CallsInterrupted, Statistics, ToolNode

from ._bodies import FailureOfTool


class Around:
    """Base class: a node with a wrapper around it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.node = ToolNode(*args, **options)

    async def ainvoke(self, *args: Any, **options: Any) -> Any:
        return await self.node.ainvoke(*args, **options)

    def statistics(self) -> Statistics:
        return self.node.statistics()


class LosesAMessage(Around):
    """Loses one of two or more messages."""

    async def ainvoke(self, *args: Any, **options: Any) -> Any:
        result = await super().ainvoke(*args, **options)
        if isinstance(result, dict) and len(result["messages"]) > 1:
            return {"messages": result["messages"][:-1]}
        return result


class MixesResultsUp(Around):
    """Exchanges the results of the first two calls."""

    async def ainvoke(self, *args: Any, **options: Any) -> Any:
        result = await super().ainvoke(*args, **options)
        if (
            isinstance(result, dict)
            and len(messages := result["messages"]) > 1
            and not isinstance(messages[1], Command)
        ):
            messages[0] = messages[0].model_copy(update={"content": messages[1].content})
        return result


class LeaksATask(Around):
    """Starts a task for which nothing waits."""

    async def ainvoke(self, *args: Any, **options: Any) -> Any:
        if sniffio.current_async_library() == "asyncio":
            self.task = asyncio.ensure_future(asyncio.sleep(1e6))
        else:
            import trio

            trio.lowlevel.spawn_system_task(trio.sleep, 1e6)
        return await super().ainvoke(*args, **options)


class ForgetsLimits(Around):
    """Ignores the limits of the node."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "limit": None})


class ForgetsTimeouts(Around):
    """Ignores the timeouts of the node."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "timeout": None})


class WrapsErrors(Around):
    """Raises single errors in groups."""

    async def ainvoke(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().ainvoke(*args, **options)
        except FailureOfTool as error:
            raise ExceptionGroup("one", [error]) from None


class CopiesErrors(Around):
    """Raises a copy of an error in place of the original."""

    async def ainvoke(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().ainvoke(*args, **options)
        except FailureOfTool as error:
            raise FailureOfTool(*error.args) from None


class AsksOneByOne(Around):
    """Shows only the first question of a batch."""

    async def ainvoke(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().ainvoke(*args, **options)
        except CallsInterrupted as waiting:
            raise CallsInterrupted(waiting.interrupts[:1], waiting.ledger) from None


class MixesAnswersUp(Around):
    """Gives each question the answer to the next one."""

    async def ainvoke(self, *args: Any, **options: Any) -> Any:
        answers = options.get("resume")
        if isinstance(answers, dict):
            given = [*answers.values()]
            options["resume"] = dict(zip(answers, given[1:] + given[:1], strict=True))
        return await super().ainvoke(*args, **options)


class ForgetsTheLedger(Around):
    """Discards the ledger after a cancellation."""

    async def ainvoke(self, *args: Any, **options: Any) -> Any:
        if "resume" not in options and "ledger" in options:
            options["ledger"] = {}
        return await super().ainvoke(*args, **options)


class IgnoresItsCaller(Around):
    """Ignores its caller's cancellation until all calls are done."""

    async def ainvoke(self, *args: Any, **options: Any) -> Any:
        with anyio.CancelScope(shield=True):
            return await super().ainvoke(*args, **options)


class Miscounts(Around):
    """Counts one waiting call too many."""

    def statistics(self) -> Statistics:
        return Statistics(running=0, waiting=1, abandoned_threads=0)


class DropsAnError(Around):
    """Leaves an error in a future that is never awaited."""

    async def ainvoke(self, *args: Any, **options: Any) -> Any:
        if sniffio.current_async_library() == "asyncio":
            asyncio.get_running_loop().create_future().set_exception(FailureOfTool("nobody looks"))
        else:
            _never_awaited()
        return await super().ainvoke(*args, **options)


def _never_awaited() -> None:
    async def work() -> None:
        pass

    coroutine: Callable[[], Awaitable[None]] = work
    coroutine()


DEFECTS: dict[type[Around], str] = {
    LosesAMessage: "every_call_has_one_message_in_call_order",
    MixesResultsUp: "a_result_is_what_the_body_returned",
    LeaksATask: "no_task_is_left",
    ForgetsLimits: "limits_hold",
    ForgetsTimeouts: "timeouts_hold",
    WrapsErrors: "errors_are_bare_and_the_original",
    CopiesErrors: "errors_are_bare_and_the_original",
    AsksOneByOne: "all_questions_surface_together",
    MixesAnswersUp: "answers_reach_their_questions",
    ForgetsTheLedger: "what_finished_does_not_run_again",
    IgnoresItsCaller: "callers_go_in_time",
    Miscounts: "statistics_are_back_to_zero",
    DropsAnError: "nothing_is_said_afterwards",
}
