"""Defective nodes, by the promise that they break; the explorer has to find each defect."""

import asyncio
from typing import Any

import anyio
import sniffio
from langgraph.types import Command

from callboard import CallsInterrupted, Statistics, ToolNode

from ._bodies import FailureOfTool


class Around:
    """Base class: a node whose options, results and errors a defect may change."""

    without: tuple[str, ...] = ()
    """Options of the node that are ignored."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.node = ToolNode(*args, **{**options, **dict.fromkeys(self.without)})

    async def ainvoke(self, *args: Any, **options: Any) -> Any:
        self.begin(options)
        try:
            result = await self.node.ainvoke(*args, **options)
        except (FailureOfTool, CallsInterrupted) as error:
            raise self.change_error(error) from None
        if isinstance(result, dict) and len(result["messages"]) > 1:
            return {"messages": self.messages(result["messages"])}
        return result

    def begin(self, options: dict[str, Any]) -> None:
        """Change the options of a run."""

    def messages(self, messages: list[Any]) -> list[Any]:
        """Change two or more messages."""
        return messages

    def change_error(self, error: Exception) -> Exception:
        """Change an error."""
        return error

    def statistics(self) -> Statistics:
        return self.node.statistics()

    async def cancel(self, call_id: str, reason: str) -> bool:
        return await self.node.cancel(call_id, reason)


class LosesAMessage(Around):
    """Loses one of two or more messages."""

    def messages(self, messages: list[Any]) -> list[Any]:
        return messages[:-1]


class MixesResultsUp(Around):
    """Exchanges the results of the first two calls."""

    def messages(self, messages: list[Any]) -> list[Any]:
        first, second, *remaining = messages
        if isinstance(second, Command):
            return messages
        return [first.model_copy(update={"content": second.content}), second, *remaining]


class LeaksATask(Around):
    """Starts a task for which nothing waits."""

    def begin(self, options: dict[str, Any]) -> None:
        if sniffio.current_async_library() == "asyncio":
            self.task = asyncio.ensure_future(asyncio.sleep(1e6))
        else:
            import trio

            trio.lowlevel.spawn_system_task(trio.sleep, 1e6)


class ForgetsLimits(Around):
    """Ignores the limits of the node."""

    without = ("limit",)


class ForgetsTimeouts(Around):
    """Ignores the timeouts of the node."""

    without = ("timeout",)


class WrapsErrors(Around):
    """Raises single errors in groups."""

    def change_error(self, error: Exception) -> Exception:
        return ExceptionGroup("one", [error]) if isinstance(error, FailureOfTool) else error


class CopiesErrors(Around):
    """Raises a copy of an error in place of the original."""

    def change_error(self, error: Exception) -> Exception:
        return FailureOfTool(*error.args) if isinstance(error, FailureOfTool) else error


class AsksOneByOne(Around):
    """Shows only the first question of a batch."""

    def change_error(self, error: Exception) -> Exception:
        one_of = isinstance(error, CallsInterrupted)
        return CallsInterrupted(error.interrupts[:1], error.ledger) if one_of else error  # type: ignore[attr-defined]


class MixesAnswersUp(Around):
    """Gives each question the answer to the next one."""

    def begin(self, options: dict[str, Any]) -> None:
        answers = options.get("resume")
        if isinstance(answers, dict):
            values = [*answers.values()]
            options["resume"] = dict(zip(answers, values[1:] + values[:1], strict=True))


class ForgetsTheLedger(Around):
    """Discards the ledger after a cancellation."""

    def begin(self, options: dict[str, Any]) -> None:
        if "resume" not in options and "ledger" in options:
            options["ledger"] = {}


class IgnoresItsCaller(Around):
    """Ignores its caller's cancellation until all calls are done."""

    async def ainvoke(self, *args: Any, **options: Any) -> Any:
        with anyio.CancelScope(shield=True):
            return await super().ainvoke(*args, **options)


class Miscounts(Around):
    """Counts one waiting call too many."""

    def statistics(self) -> Statistics:
        return Statistics(running=0, waiting=1, abandoned_threads=0)


class CancelsLate(Around):
    """Says that a call was cancelled, and lets it go on."""

    async def cancel(self, call_id: str, reason: str) -> bool:
        return any(call.call_id == call_id for call in self.node.running())


class DropsAnError(Around):
    """Leaves an error in a future, or a coroutine, that is never awaited."""

    def begin(self, options: dict[str, Any]) -> None:
        if sniffio.current_async_library() == "asyncio":
            asyncio.get_running_loop().create_future().set_exception(FailureOfTool("nobody looks"))
        else:
            self.node.ainvoke([])


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
    CancelsLate: "a_cancelled_call_ends_alone",
}
