"""Everything callboard raises or warns of, one class for each thing a caller would catch.

    CallboardError
    ├── ThreadBusyError             another run has the thread
    ├── RunDeadlineExceededError    the budget of an agent's run was spent          (a TimeoutError)
    ├── DrainingError               something is being drained: it begins nothing new, or what ran was ended
    ├── StorageError                a database cannot be used
    ├── ActorStartError             an actor did not start
    ├── SnapshotError               the state of an actor cannot be kept in a journal
    ├── SupervisorError             its actors ended more often than it restarts them, or one for good
    └── CallError                   a call ended without a result of its own
        ├── CallTimeoutError        one attempt took longer than its timeout        (a TimeoutError)
        ├── DeadlineExceededError   the call's budget was spent, queue included     (a TimeoutError)
        ├── CallRejectedError       no place: the queue is full, or no thread left
        │   └── MailboxFullError    the actor has as many calls before it as may wait
        ├── CircuitOpenError        the tool kept failing, and is left alone for a while
        ├── CallCancelledError      the body cancelled itself; nobody asked it to
        ├── EngineError             an engine has no result of a body
        └── ActorError              an actor has no answer
            ├── ActorGoneError      it has ended for good, or never lived; the call did not begin
            ├── ActorDiedError      it ended while the call ran; nobody knows what came of it
            ├── DeadlockError       the call would have waited for itself
            └── PoisonousCallError  the same call has ended the actor before, too often

    langgraph.errors.GraphInterrupt
    └── CallsInterrupted            calls of a batch wait for answers; carries what finished

    UserWarning
    └── CallboardWarning
        ├── AbandonedTaskWarning    a task that a tool started outlived its batch
        ├── AbandonedThreadWarning  a worker thread outlived its call
        ├── DuplicateCallIdWarning  two calls of one batch share an id
        ├── IdleMiddlewareWarning   a middleware can do nothing for a tool, as it is set
        ├── IgnoredHooksWarning     a middleware of LangChain's has hooks that will not run
        ├── MiddlewareOrderWarning  two middleware in an order that is known to go wrong
        └── LoopBlockedWarning      an async tool, a middleware or an observer kept the event loop from turning

Misuse raises the built-in exceptions (`ValueError`, `TypeError`) and names the argument.
"""

import math
from typing import Literal

from callboard._lazy import lazy

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
    "CircuitOpenError",
    "DeadlineExceededError",
    "DeadlockError",
    "DrainingError",
    "DuplicateCallIdWarning",
    "EngineError",
    "IdleMiddlewareWarning",
    "IgnoredHooksWarning",
    "LoopBlockedWarning",
    "MailboxFullError",
    "MiddlewareOrderWarning",
    "PoisonousCallError",
    "RunDeadlineExceededError",
    "SnapshotError",
    "StorageError",
    "SupervisorError",
    "ThreadBusyError",
]

# It is a `GraphInterrupt`, and what is below the tools knows no LangGraph.
__getattr__ = lazy(__name__, {".tools._interrupted": ("CallsInterrupted",)})

Ended = Literal["timeout", "deadline", "rejected", "unavailable", "cancelled", "unknown", "finished"]

EngineEnded = Literal["unavailable", "unknown", "finished"]


class CallboardError(Exception):
    """Base of every error that callboard raises for a condition of the world."""

    def __reduce__(self) -> tuple[object, ...]:
        # By its attributes: subclasses take other arguments than the sentence that they make of them.
        return _remade, (type(self), self.args, self.__dict__)


def _remade(cls: type[CallboardError], args: tuple[object, ...], attributes: dict[str, object]) -> CallboardError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(attributes)
    return error


class ThreadBusyError(CallboardError):
    """Another run has the thread: in this process, or in another one that is alive."""

    def __init__(self, thread_id: str, holder: str) -> None:
        self.thread_id = thread_id
        self.holder = holder
        super().__init__(f"The thread {thread_id!r} is being run by {holder}. Wait until that run has ended.")


class RunDeadlineExceededError(CallboardError, TimeoutError):
    """The budget of an agent's run was spent (seconds); its thread is kept, and can go on."""

    def __init__(self, budget: float) -> None:
        self.budget = budget
        super().__init__(f"The run was given up: its budget of {budget:g} s was spent.")


class DrainingError(CallboardError):
    """Something is being drained: it begins nothing new (`begun` is False), or what ran was ended before it finished.

    What was not begun may be tried elsewhere; a thread whose run was ended goes on with `None` as its input.
    """

    def __init__(self, what: str, *, begun: bool = False) -> None:
        self.what = what
        self.begun = begun
        then = "what ran was ended before it had finished" if begun else "it begins nothing new. Try another one"
        super().__init__(f"{what} is being drained: {then}.")


class StorageError(CallboardError):
    """A database cannot be used; says which, why, and what helps. The driver's error is its `__cause__`."""

    def __init__(self, where: str, reason: str) -> None:
        self.where = where
        self.reason = reason
        super().__init__(f"{where} {reason}")


class ActorStartError(CallboardError):
    """An actor did not start; its `__cause__` says why.

    `never` says that it is no use to try again, because something that it needs is not there.
    """

    def __init__(self, actor: str, reason: str, *, never: bool = False) -> None:
        self.actor = actor
        self.reason = reason
        self.never = never
        super().__init__(f"The actor {actor!r} did not start: {reason}")


class SnapshotError(CallboardError):
    """The state of an actor cannot be kept in the journal of its thread; the call that led to it does not count."""

    def __init__(self, actor: str, reason: str) -> None:
        self.actor = actor
        self.reason = reason
        super().__init__(f"The state of the actor {actor} cannot be kept in the journal: {reason}")


class SupervisorError(CallboardError):
    """A supervisor gave up: a child ended more often than it restarts them; what ended it is the `__cause__`."""

    def __init__(self, supervisor: str, reason: str) -> None:
        self.supervisor = supervisor
        self.reason = reason
        super().__init__(f"The supervisor {supervisor!r} gave up: {reason}")


class CallError(CallboardError):
    """A call ended without a result of its own."""

    ended: Ended
    """How the call ended, in one word; also found on the error message for the model."""

    def __init__(self, tool: str, call_id: str | None, sentence: str) -> None:
        self.tool = tool
        self.call_id = call_id
        super().__init__(sentence)

    @property
    def facts(self) -> dict[str, object]:
        """What programs may want to read off the message, besides `ended`."""
        return {}


class CallTimeoutError(CallError, TimeoutError):
    """One attempt took longer than its timeout (seconds), or the middleware around it did.

    Or it was `idle`: it gave no sign of life for as long as its idle timeout; then that is the `timeout`.
    """

    ended: Ended = "timeout"

    def __init__(
        self,
        tool: str,
        call_id: str | None,
        timeout: float,
        *,
        held: str | None = None,
        by_middleware: bool = False,
        idle: bool = False,
    ) -> None:
        self.timeout = timeout
        self.held = held
        """Who kept the event loop from turning meanwhile, in words; `None` if nobody did."""
        self.idle = idle
        """Whether it was the idle timeout."""
        what = f"did not finish within its timeout of {timeout:g} s"
        if idle:
            what = f"was given up: it gave no sign of life for {timeout:g} s"
        elif by_middleware:
            what += ": the middleware around it took longer"
        meanwhile = "" if held is None else f" Meanwhile {held}."
        super().__init__(tool, call_id, f"Tool {tool!r} {what}.{meanwhile}")

    @property
    def facts(self) -> dict[str, object]:
        """Says `idle` where the attempt was given up because it gave no sign of life."""
        return {"idle": True} if self.idle else {}


class DeadlineExceededError(CallError, TimeoutError):
    """The budget of a call was spent: queue wait, attempts and backoff together."""

    ended: Ended = "deadline"

    def __init__(self, tool: str, call_id: str | None, budget: float, *, started: bool) -> None:
        self.budget = budget
        self.started = started
        where = "while it ran" if started else "before it could start"
        super().__init__(tool, call_id, f"Tool {tool!r} was given up: its budget of {budget:g} s was spent {where}.")


class CallRejectedError(CallError):
    """A call found no place: a queue was full, or every worker thread was lost."""

    ended: Ended = "rejected"

    def __init__(self, tool: str, call_id: str | None, reason: str) -> None:
        self.reason = reason
        advice = "Try again later, or ask for less at once."
        super().__init__(tool, call_id, f"Tool {tool!r} was not started: {reason}. {advice}")


class CircuitOpenError(CallError):
    """A tool kept failing and is left alone for a while; the body did not run.

    `retry_after` is the number of seconds until it may be tried again; 0 while others are trying it.
    """

    ended: Ended = "unavailable"

    def __init__(self, tool: str, call_id: str | None, retry_after: float, *, partly: bool = False) -> None:
        self.retry_after = retry_after
        what = f"Tool {tool!r} is unavailable{' for calls like this one' if partly else ''} after repeated failures."
        super().__init__(tool, call_id, f"{what} Try again after {self.facts['retry_after']} s.")

    @property
    def facts(self) -> dict[str, object]:
        """Says in `retry_after` how many whole seconds to wait before the next call."""
        # To the millisecond first: two clocks never agree to the last digit.
        return {"retry_after": max(1, math.ceil(round(self.retry_after, 3)))}


class CallCancelledError(CallError):
    """The body raised the event loop's cancellation although nobody had cancelled it."""

    ended: Ended = "cancelled"

    def __init__(self, tool: str, call_id: str | None) -> None:
        super().__init__(tool, call_id, f"Tool {tool!r} cancelled itself before it had a result.")


def _not_started(tool: str, reason: str) -> str:
    return f"{tool!r} was not started: {reason}."


def _had_begun(tool: str, reason: str) -> str:
    return f"{tool!r} had begun when {reason}. Whether it had its effect is unknown."


_FIND_OUT = "Find out before you call it again."


class EngineError(CallError):
    """An engine has no result of a body that it was to run.

    `ended` tells what is known: "unavailable" if the body had not begun, "unknown" if it had and nobody knows whether
    it had its effect, "finished" if it came to its end and what it returned or raised was lost.
    """

    def __init__(
        self, tool: str, call_id: str | None, reason: str, *, ended: EngineEnded, recurs: bool = False
    ) -> None:
        self.reason = reason
        """What happened, to follow "because" or "when": "its worker process was killed by SIGKILL"."""
        if ended == "unavailable":
            sentence = _not_started(tool, reason)
        elif ended == "unknown":
            sentence = f"{_had_begun(tool, reason)} {_FIND_OUT}"
        else:
            sentence = f"{tool!r} has finished, but its result is lost: {reason}."
        super().__init__(tool, call_id, sentence)
        self.ended = ended
        self.recurs = recurs
        """Whether the body itself brought it about, so that it would happen again."""


class MailboxFullError(CallRejectedError):
    """An actor has as many calls before it as may wait; this one did not begin."""


class ActorError(CallError):
    """An actor has no answer to a call."""


class ActorGoneError(ActorError):
    """An actor has ended for good, or has not been started; the call did not begin."""

    ended: Ended = "unavailable"

    def __init__(self, tool: str, call_id: str | None, reason: str) -> None:
        self.reason = reason
        super().__init__(tool, call_id, _not_started(tool, reason))


class ActorDiedError(ActorError):
    """An actor ended while it had a call; whether that had its effect is unknown."""

    ended: Ended = "unknown"

    def __init__(self, tool: str, call_id: str | None, reason: str, *, loss: str = "") -> None:
        self.reason = reason
        more = f" {loss}" if loss else ""
        super().__init__(tool, call_id, f"{_had_begun(tool, reason)}{more} {_FIND_OUT}")


class DeadlockError(ActorError):
    """A call would have waited for itself: at an actor, or at a limit whose places are held by calls that wait for it.

    `chain` has the calls that wait for each other, the first one again last; of an actor that asks itself, both calls.
    """

    ended: Ended = "rejected"

    def __init__(self, tool: str, call_id: str | None, chain: tuple[str, ...], *, remedy: str) -> None:
        self.chain = chain
        waits = f"{tool!r} was not started, because it would wait for itself: {' -> '.join(chain)}."
        super().__init__(tool, call_id, f"{waits} {remedy}")


class PoisonousCallError(ActorError):
    """The same call ended the actor before, `times` times; it is not tried again.

    `runs` says how often the handler ran for this very call before it was refused; 0 if it did not.
    """

    ended: Ended = "rejected"

    def __init__(self, tool: str, call_id: str | None, times: int, *, runs: int = 0) -> None:
        self.times = times
        self.runs = runs
        if runs:
            self.ended = "unknown"
            told = f"{tool!r} ran {runs} times for this call and ended its actor each time; it is not run again."
            told += f" Whether it had its effect is unknown. {_FIND_OUT}"
        else:
            told = f"{tool!r} was refused: with the same arguments it ran {times} times and ended its actor each time."
            told += " Ask for something else."
        super().__init__(tool, call_id, told)


class CallboardWarning(UserWarning):
    """Base of every warning that callboard gives."""


class AbandonedTaskWarning(CallboardWarning):
    """A task that a tool started with `asyncio.create_task` outlived its batch; names both, once for each function."""


class AbandonedThreadWarning(CallboardWarning):
    """A worker thread went on after its call had ended; it keeps its places until it ends."""


class DuplicateCallIdWarning(CallboardWarning):
    """Two calls of one batch share an id; each runs and gets a message of its own."""


class IdleMiddlewareWarning(CallboardWarning):
    """A middleware can do nothing for a tool, as it is set; says why, and what to set."""


class IgnoredHooksWarning(CallboardWarning):
    """A middleware of LangChain's has hooks that only `create_agent` would run; names them."""


class MiddlewareOrderWarning(CallboardWarning):
    """Middleware stands in an order that is known to go wrong; says why, and which order to choose."""


LinkOrderWarning = MiddlewareOrderWarning
"""The name that it had when middleware was called links; filters that were written then go on."""


class LoopBlockedWarning(CallboardWarning):
    """An async tool, a middleware or an observer blocked the event loop; says which, how long and where, once each."""
