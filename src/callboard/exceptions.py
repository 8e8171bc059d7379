"""Exceptions and warnings of callboard: one class for each condition that a caller may want to catch.

    CallboardError
    ├── ThreadBusyError             another run uses the conversation
    ├── OpenCallsError              calls of the conversation wait for a person, or have no result
    ├── RunDeadlineExceededError    the budget of an agent's run was spent          (a TimeoutError)
    ├── RunCancelledError           a started run was cancelled
    ├── RunNotFoundError            the conversation has no live run                (a LookupError)
    ├── ChunksDroppedError          the next chunk of a run is no longer there
    ├── LoopError                   a model repeats the same calls with the same results
    ├── DrainingError               a drain refused a new call, or ended a running one
    ├── StorageError                a database cannot be used
    ├── ActorStartError             an actor did not start
    ├── SnapshotError               the state of an actor cannot be kept in a journal
    ├── SupervisorError             an actor ended too often, or cannot be restarted
    └── CallError                   a call ended without a result
        ├── CallTimeoutError        one attempt took longer than its timeout        (a TimeoutError)
        ├── DeadlineExceededError   the call's budget was spent, queue included     (a TimeoutError)
        ├── CallRejectedError       no permit: the queue is full, or no thread is left
        │   └── MailboxFullError    the mailbox of the actor is full
        ├── CircuitOpenError        the tool failed repeatedly, and is not called for a while
        ├── CallCancelledError      it was cancelled alone: by `cancel()`, or by its body
        ├── EngineError             an engine has no result for a body
        └── ActorError              an actor did not answer
            ├── ActorGoneError      it has ended, or was not started; the call did not start
            ├── ActorDiedError      it ended during the call; the outcome is unknown
            ├── DeadlockError       the call would have waited for itself
            └── PoisonousCallError  the same call ended the actor too often

    langgraph.errors.GraphInterrupt
    └── CallsInterrupted            calls of a batch wait for answers; carries finished results

    UserWarning
    └── CallboardWarning
        ├── AbandonedTaskWarning    a task that a tool started outlived its batch
        ├── AbandonedThreadWarning  a worker thread outlived its call
        ├── DuplicateCallIdWarning  two calls of one batch share an id
        ├── DuplicateToolWarning    two tools of a list have one name; the last one is used
        ├── ForegroundCallWarning   a call of a tool with a background policy ends with its batch
        ├── IdleMiddlewareWarning   a middleware has no effect in its configuration
        ├── IgnoredHooksWarning     LangChain's middleware has hooks that will not run
        ├── MiddlewareOrderWarning  two middleware are in a harmful order
        └── LoopBlockedWarning      an async tool, a middleware or an observer blocked the event loop

Misuse raises the built-in exceptions (`ValueError`, `TypeError`) and names the argument.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

from callboard._util._lazy import lazy

__all__ = [
    "AbandonedTaskWarning",
    "AbandonedThreadWarning",
    "ActorDiedError",
    "ActorError",
    "ActorGoneError",
    "ActorStartError",
    "CallCancelledError",
    "CallError",
    "CallRejectedError",
    "CallTimeoutError",
    "CallboardError",
    "CallboardWarning",
    "ChunksDroppedError",
    "CircuitOpenError",
    "DeadlineExceededError",
    "DeadlockError",
    "DrainingError",
    "DuplicateCallIdWarning",
    "DuplicateToolWarning",
    "EngineError",
    "ForegroundCallWarning",
    "IdleMiddlewareWarning",
    "IgnoredHooksWarning",
    "LoopBlockedWarning",
    "LoopError",
    "MailboxFullError",
    "MiddlewareOrderWarning",
    "OpenCallsError",
    "PoisonousCallError",
    "RunCancelledError",
    "RunDeadlineExceededError",
    "RunNotFoundError",
    "SnapshotError",
    "StorageError",
    "SupervisorError",
    "ThreadBusyError",
]

# Loaded lazily: it derives from LangGraph's `GraphInterrupt`, and layers below the tools must not import LangGraph.
__getattr__ = lazy(__name__, {"callboard.tools._ledger": ("CallsInterrupted",)})

Ended = Literal["timeout", "deadline", "rejected", "unavailable", "cancelled", "unknown", "finished"]

EngineEnded = Literal["unavailable", "unknown", "finished"]


class CallboardError(Exception):
    """Base class of all errors that callboard raises for conditions at run time. Misuse raises built-in exceptions."""

    def __reduce__(self) -> tuple[object, ...]:
        # By attributes: the constructors of subclasses take facts, while `args` has the finished sentence.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[CallboardError], args: tuple[object, ...], attributes: dict[str, object]) -> CallboardError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(attributes)
    return error


class ThreadBusyError(CallboardError):
    """Another run uses the conversation (thread), in this process or in another live process.

    Args:
        thread_id: the conversation.
        holder: description of the other run.
    """

    def __init__(self, thread_id: str, holder: str) -> None:
        self.thread_id = thread_id
        self.holder = holder
        super().__init__(f"The thread {thread_id!r} is being run by {holder}. Wait until that run has ended.")


class OpenCallsError(CallboardError):
    """The last turn of the conversation (thread) is not over: calls wait for a person, or have no result.

    Args:
        thread_id: the conversation.
        interrupts: open questions, as LangGraph's `Interrupt` objects; empty if nobody has to be asked.
    """

    def __init__(self, thread_id: str, interrupts: Sequence[Any]) -> None:
        self.thread_id = thread_id
        self.interrupts = tuple(interrupts)
        # Without the values of the questions, which have arguments of calls: somebody may log the error.
        ids = ", ".join(repr(interrupt.id) for interrupt in self.interrupts)
        remedy = (
            f"has open questions: {ids}. Answer with Command(resume={{id: answer}})"
            if ids
            else "has calls without a result. Continue them with the input None"
        )
        super().__init__(f"The thread {thread_id!r} {remedy}, or give them up with agent.say(..., give_up=True).")


class RunDeadlineExceededError(CallboardError, TimeoutError):
    """The time budget of an agent's run was spent. The conversation (thread) is kept, and the run can be continued.

    Args:
        budget: seconds for the run.
    """

    def __init__(self, budget: float) -> None:
        self.budget = budget
        super().__init__(f"The run was given up: its budget of {budget:g} s was spent.")


class RunCancelledError(CallboardError):
    """A started run of an agent was cancelled. The conversation (thread) is kept, and the run can be continued.

    Args:
        thread_id: the conversation.
    """

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        super().__init__(f"The run of the thread {thread_id!r} was cancelled. The input None continues it.")


class RunNotFoundError(CallboardError, LookupError):
    """The conversation (thread) has no live run in this process, and no run that has ended recently.

    Args:
        thread_id: the conversation.
    """

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        super().__init__(
            f"The thread {thread_id!r} has no live run of this agent in this process, and no started one that ended "
            "recently. Start one with agent.start() or agent.say(start=True), or read the thread with "
            "agent.aget_state()."
        )


class ChunksDroppedError(CallboardError):
    """A reader of a run comes too late: the buffer no longer has the chunk after the one that the reader has got.

    Args:
        thread_id: the conversation.
        after: number of the last chunk that the reader has got.
        oldest: number after which the buffer has all chunks.
    """

    def __init__(self, thread_id: str, after: int, oldest: int) -> None:
        self.thread_id = thread_id
        self.after = after
        self.oldest = oldest
        super().__init__(
            f"The thread {thread_id!r} no longer has all chunks after {after}, only those after {oldest}. Read the "
            f"state with agent.aget_state(), and then the stream with after={oldest}; or start runs with a larger "
            "buffer=."
        )


class LoopError(CallboardError):
    """A model makes the same calls again and again and gets the same results; a `LoopGuard` has ended the run.

    The conversation (thread) is kept. It goes on with a new message.

    Args:
        tool: name of the tool of the call that was not run.
        repetitions: how often the calls were made in a row, this time included.
    """

    def __init__(self, tool: str, repetitions: int) -> None:
        self.tool = tool
        self.repetitions = repetitions
        super().__init__(
            f"The model has made the same calls {repetitions} times in a row, with the same results, here of the tool "
            f"{tool!r}. The conversation is kept: go on with a new message."
        )


class DrainingError(CallboardError):
    """A drain refused a new call or run, or ended a running call or run before it finished.

    A refused call may be tried at another process. The thread of an ended run continues with `None` as its input.

    Args:
        name: name of the drained node, agent or engine.
        begun: `True` if the work had started and was ended, `False` if it was refused.
    """

    def __init__(self, name: str, *, begun: bool = False) -> None:
        self.name = name
        self.begun = begun
        if begun:
            effect = "what ran was ended before it had finished."
        else:
            effect = "it begins nothing new. Try another process, or open it again with `async with`."
        super().__init__(f"{name} is being drained: {effect}")


class StorageError(CallboardError):
    """A database cannot be used.

    The text names the database, the reason and the remedy; `__cause__` is the driver's error.

    Args:
        database: address of the database, without a password.
        reason: a clause that follows the address.
    """

    def __init__(self, database: str, reason: str) -> None:
        self.database = database
        self.reason = reason
        super().__init__(f"{database} {reason}")


class ActorStartError(CallboardError):
    """An actor did not start; `__cause__` has the reason.

    Args:
        actor: name of the actor.
        reason: a sentence.
        is_permanent: `True` if another attempt is useless, because a requirement is missing.
    """

    def __init__(self, actor: str, reason: str, *, is_permanent: bool = False) -> None:
        self.actor = actor
        self.reason = reason
        self.is_permanent = is_permanent
        super().__init__(f"The actor {actor!r} did not start: {reason}")


class SnapshotError(CallboardError):
    """The snapshot of an actor cannot be stored in the journal of its conversation (thread).

    The call that led to it fails with this error.

    Args:
        actor: name of the actor.
        reason: a sentence.
    """

    def __init__(self, actor: str, reason: str) -> None:
        self.actor = actor
        self.reason = reason
        super().__init__(f"The state of the actor {actor} cannot be kept in the journal: {reason}")


class SupervisorError(CallboardError):
    """A supervisor gave up, because a child ended more often than the supervisor's limit of restarts allows.

    `__cause__` is the error of the child.

    Args:
        supervisor: name of the supervisor.
        reason: a sentence.
    """

    def __init__(self, supervisor: str, reason: str) -> None:
        self.supervisor = supervisor
        self.reason = reason
        super().__init__(f"The supervisor {supervisor!r} gave up: {reason}")


class CallError(CallboardError):
    """Base class of errors of calls that ended without a result.

    Args:
        tool: name of the tool.
        call_id: id of the tool call; `None` if there is none.
        sentence: the text for the model.
    """

    ended: Ended
    """Way in which the call ended, in one word; also in `additional_kwargs` of the error message for the model."""

    def __init__(self, tool: str, call_id: str | None, sentence: str) -> None:
        self.tool = tool
        self.call_id = call_id
        super().__init__(sentence)

    @property
    def facts(self) -> dict[str, object]:
        """Additional data about the error, for programs; also in `additional_kwargs` of the message for the model."""
        return {}


class CallTimeoutError(CallError, TimeoutError):
    """An attempt, or the middleware around it, took longer than its timeout.

    Args:
        tool: name of the tool.
        call_id: id of the tool call.
        timeout: seconds of the timeout, or of the idle timeout.
        blocking_code: description of the code that blocked the event loop meanwhile.
        by_middleware: `True` if the middleware took too long.
        idle: `True` if the attempt showed no activity for its idle timeout.
    """

    ended: Ended = "timeout"

    def __init__(
        self,
        tool: str,
        call_id: str | None,
        timeout: float,
        *,
        blocking_code: str | None = None,
        by_middleware: bool = False,
        idle: bool = False,
    ) -> None:
        self.timeout = timeout
        self.blocking_code = blocking_code
        """Description of the code that blocked the event loop during the call; `None` if the loop was not blocked."""
        self.idle = idle
        """`True` if the attempt was ended by its idle timeout, which is a limit of the time without activity."""
        outcome = f"did not finish within its timeout of {timeout:g} s"
        if idle:
            outcome = f"was given up: it gave no sign of life for {timeout:g} s"
        elif by_middleware:
            outcome += ": the middleware around it took longer"
        meanwhile = "" if blocking_code is None else f" Meanwhile {blocking_code}."
        super().__init__(tool, call_id, f"Tool {tool!r} {outcome}.{meanwhile}")

    @property
    def facts(self) -> dict[str, object]:
        """Additional data about the error, for programs: `idle` is `True` if the idle timeout ended the attempt."""
        return {"idle": True} if self.idle else {}


class DeadlineExceededError(CallError, TimeoutError):
    """The time budget of a call was spent by its queue wait, attempts and backoff together.

    Args:
        tool: name of the tool.
        call_id: id of the tool call.
        budget: seconds for the call.
        started: `True` if the body had started.
    """

    ended: Ended = "deadline"

    def __init__(self, tool: str, call_id: str | None, budget: float, *, started: bool) -> None:
        self.budget = budget
        self.started = started
        moment = "while it ran" if started else "before it could start"
        super().__init__(tool, call_id, f"Tool {tool!r} was given up: its budget of {budget:g} s was spent {moment}.")


class CallRejectedError(CallError):
    """A call was not started: a queue was full, all worker threads are abandoned, or a conversation is in use.

    Args:
        tool: name of the tool.
        call_id: id of the tool call.
        reason: a clause.
    """

    ended: Ended = "rejected"

    def __init__(self, tool: str, call_id: str | None, reason: str) -> None:
        self.reason = reason
        advice = "Try again later, or ask for less at once."
        super().__init__(tool, call_id, f"Tool {tool!r} was not started: {reason}. {advice}")


class CircuitOpenError(CallError):
    """A circuit breaker refused a call, because the tool failed repeatedly; the tool's function did not run.

    Args:
        tool: name of the tool.
        call_id: id of the tool call.
        retry_after: seconds until the tool may be tried again; 0 while other calls are trying it.
        partly: `True` if the circuit is open only for some calls of the tool.
    """

    ended: Ended = "unavailable"

    def __init__(self, tool: str, call_id: str | None, retry_after: float, *, partly: bool = False) -> None:
        self.retry_after = retry_after
        sentence = (
            f"Tool {tool!r} is unavailable{' for calls like this one' if partly else ''} after repeated failures."
        )
        super().__init__(tool, call_id, f"{sentence} Try again after {self.facts['retry_after']} s.")

    @property
    def facts(self) -> dict[str, object]:
        """Additional data about the error, for programs: `retry_after` is the time to wait, in whole seconds."""
        # Rounded to milliseconds first: otherwise the noise in the last digits of a clock could add a whole second.
        return {"retry_after": max(1, math.ceil(round(self.retry_after, 3)))}


class CallCancelledError(CallError):
    """A call was cancelled alone, while the other calls of its batch went on.

    Either `cancel()` of a node or an agent was called for it, or its function raised the event loop's cancellation
    error although nothing had cancelled it.

    Args:
        tool: name of the tool.
        call_id: id of the tool call.
        reason: the reason that was given to `cancel()`; `None` if the function cancelled itself.
        started: `True` if the body had started.
        is_repeatable: `True` if the call is idempotent, so that it may be made again without harm.
    """

    ended: Ended = "cancelled"

    def __init__(
        self,
        tool: str,
        call_id: str | None,
        *,
        reason: str | None = None,
        started: bool = True,
        is_repeatable: bool = False,
    ) -> None:
        self.reason = reason
        self.started = started
        if reason is None:
            sentence = f"Tool {tool!r} cancelled itself before it had a result."
        else:
            moment = "before it had a result" if started else "before it started"
            why = f": {reason.rstrip('.')}" if reason else ""
            sentence = f"Tool {tool!r} was cancelled by the application {moment}{why}."
            if not started:
                sentence += " It did not run."
            elif not is_repeatable:
                sentence += f" Whether it had its effect is unknown. {_FIND_OUT}"
        super().__init__(tool, call_id, sentence)

    @property
    def facts(self) -> dict[str, object]:
        """Additional data about the error, for programs: `reason` and `started` of a call that `cancel()` has ended."""
        return {} if self.reason is None else {"reason": self.reason, "started": self.started}


def _not_started(tool: str, reason: str) -> str:
    return f"{tool!r} was not started: {reason}."


def _had_begun(tool: str, reason: str) -> str:
    return f"{tool!r} had begun when {reason}. Whether it had its effect is unknown."


_FIND_OUT = "Find out before you call it again."


class EngineError(CallError):
    """An engine, such as a pool of worker processes, did not return the result of a function that it had to run.

    `ended` is "unavailable" if the body had not started. It is "unknown" if the body had started, so that it may have
    had its effect. It is "finished" if the body ended and its result was lost.

    Args:
        tool: name of the tool or body.
        call_id: id of the tool call; `None` if there is none.
        reason: a clause; see the attribute.
        ended: "unavailable", "unknown" or "finished".
        recurs: `True` if the body itself caused the loss.
    """

    def __init__(
        self, tool: str, call_id: str | None, reason: str, *, ended: EngineEnded, recurs: bool = False
    ) -> None:
        self.reason = reason
        """Clause that can follow "because" or "when": "its worker process was killed by SIGKILL"."""
        if ended == "unavailable":
            sentence = _not_started(tool, reason)
        elif ended == "unknown":
            sentence = f"{_had_begun(tool, reason)} {_FIND_OUT}"
        else:
            sentence = f"{tool!r} has finished, but its result is lost: {reason}."
        super().__init__(tool, call_id, sentence)
        self.ended = ended
        self.recurs = recurs
        """`True` if the function itself caused the loss of the result, so that another run would probably fail, too."""


class MailboxFullError(CallRejectedError):
    """The mailbox of an actor is full; the call did not start."""


class ActorError(CallError):
    """Base class of errors of calls that an actor did not answer."""


class ActorGoneError(ActorError):
    """The actor that a call needs was not started, or has ended and is not restarted; the call did not start.

    Args:
        tool: name of the tool or handler.
        call_id: id of the tool call; `None` if there is none.
        reason: a clause.
    """

    ended: Ended = "unavailable"

    def __init__(self, tool: str, call_id: str | None, reason: str) -> None:
        self.reason = reason
        super().__init__(tool, call_id, _not_started(tool, reason))


class ActorDiedError(ActorError):
    """An actor ended while it ran a call; it is unknown whether the call had its effect.

    Args:
        tool: name of the tool or handler.
        call_id: id of the tool call; `None` if there is none.
        reason: a clause about the actor's end.
        loss: a sentence about the actor's lost state.
    """

    ended: Ended = "unknown"

    def __init__(self, tool: str, call_id: str | None, reason: str, *, loss: str = "") -> None:
        self.reason = reason
        loss_sentence = f" {loss}" if loss else ""
        super().__init__(tool, call_id, f"{_had_begun(tool, reason)}{loss_sentence} {_FIND_OUT}")


class DeadlockError(ActorError):
    """A call was refused because it would wait for itself, at an actor or at a limit.

    At a limit, all permits are held by calls that wait, directly or indirectly, for the refused call.

    Args:
        tool: name of the tool or handler.
        call_id: id of the tool call; `None` if there is none.
        chain: the calls that wait for each other; the last one equals the first. For an actor that asks itself, both
            calls.
        remedy: a sentence.
    """

    ended: Ended = "rejected"

    def __init__(self, tool: str, call_id: str | None, chain: tuple[str, ...], *, remedy: str) -> None:
        self.chain = chain
        waits = f"{tool!r} was not started, because it would wait for itself: {' -> '.join(chain)}."
        super().__init__(tool, call_id, f"{waits} {remedy}")


class PoisonousCallError(ActorError):
    """A call was refused because it ended its actor repeatedly.

    Args:
        tool: name of the tool or handler.
        call_id: id of the tool call; `None` if there is none.
        times: number of times that a call with the same arguments ended the actor.
        runs: number of times that the handler ran for this call before the refusal; 0 if it did not.
    """

    ended: Ended = "rejected"

    def __init__(self, tool: str, call_id: str | None, times: int, *, runs: int = 0) -> None:
        self.times = times
        self.runs = runs
        if runs:
            self.ended = "unknown"
            sentence = f"{tool!r} ran {runs} times for this call and ended its actor each time; it is not run again."
            sentence += f" Whether it had its effect is unknown. {_FIND_OUT}"
        else:
            sentence = (
                f"{tool!r} was refused: with the same arguments it ran {times} times and ended its actor each time."
            )
            sentence += " Ask for something else."
        super().__init__(tool, call_id, sentence)


class CallboardWarning(UserWarning):
    """Base class of all warnings of callboard."""


class AbandonedTaskWarning(CallboardWarning):
    """A task that a tool started with `asyncio.create_task` outlived its batch. Given once for each function."""


class AbandonedThreadWarning(CallboardWarning):
    """A worker thread outlived its call; the thread holds the permits of the call until it ends."""


class DuplicateCallIdWarning(CallboardWarning):
    """Several calls of one batch have the same id; each call runs and gets its own message."""


class DuplicateToolWarning(CallboardWarning):
    """Two tools of one list have the same name; as in LangGraph, the last one takes the place of the other."""


class ForegroundCallWarning(CallboardWarning):
    """The policy of a tool has `background=`, and nothing can keep its calls in the background: they end in a batch."""


class IdleMiddlewareWarning(CallboardWarning):
    """A middleware has no effect on a tool in this configuration; the text has the reason and the remedy."""


class IgnoredHooksWarning(CallboardWarning):
    """A middleware of LangChain has hooks that only `create_agent` runs; the text names the hooks."""


class MiddlewareOrderWarning(CallboardWarning):
    """Two middleware are in a harmful order; the text has the reason and the right order."""


class LoopBlockedWarning(CallboardWarning):
    """An async tool, a middleware or an observer blocked the event loop; the text says where and how long.

    Given once for each tool, middleware or observer.
    """
