"""Data classes and protocols of supervised calls: limits, permits, engines, call policies, key functions.

Imports only `_util` and knows neither LangChain nor LangGraph: a call is a mapping with a `name`, `args` and an `id`.
"""

import inspect
import math
import os
import sys
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, get_args, runtime_checkable

from typing_extensions import get_protocol_members

from callboard._util._callers import is_async
from callboard._util._suggestions import suggests_options

ToolCallLike = Mapping[str, Any]
"""Tool call as a model writes it: `{"name": ..., "args": {...}, "id": ...}`."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """Read-only context of a tool call, which key functions get as their second argument.

    Args:
        config: LangChain config of the run, with its `configurable`.
        state: state of the graph or the agent that makes the call; `None` if there is none.
        context: the `context` argument of the run; `None` if none was given.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    state: Any = None
    context: Any = None


LimitKey = Callable[[ToolCallLike], Hashable] | Callable[[ToolCallLike, CallContext], Hashable]
"""Function from a tool call to the key of a limit; calls with equal keys share one limit: `lambda call:
call["args"]["host"]`. If the key depends on the run as well: `lambda call, context:
context.config["configurable"]["user_id"]`."""

OnError = Literal["cancel", "finish"]
"""Effect of an unhandled error on the other calls of the batch: the calls are cancelled, or may finish first."""


OnUnknown = Literal["rerun", "ask", "fail"]
"""Action for a call with an unknown outcome: its function was started, and it is not known whether it ended."""


def check_on_unknown(name: str, value: object) -> None:
    """Raise ValueError unless an option's value is a valid `on_unknown` action; `name` is the option's name."""
    actions = get_args(OnUnknown)
    if value not in actions:
        raise ValueError(f"{name} is one of {actions}, or None, got {value!r}")


@suggests_options()
@dataclass(frozen=True, slots=True)
class Rate:
    """Rate limit: at most `calls` starts in any window of `per` seconds.

    The window slides, so two full bursts never follow each other directly.

    Args:
        calls: maximum number of attempts that start in a window, at least 1.
        per: length of the window in seconds, more than 0.

    Raises:
        ValueError: for a number out of range.
    """

    calls: int
    per: float = 1.0

    def __post_init__(self) -> None:
        check_count("Rate(calls=...)", self.calls, least=1)
        check_duration("Rate(per=...)", self.per, zero=False)
        if not math.isfinite(self.per):
            raise ValueError(f"Rate(per=...) is a number of seconds, got {self.per!r}")


@suggests_options(max_concurrency="write concurrency=", rate_limit="write rate=Rate(20, per=1.0)")
@dataclass(frozen=True, slots=True, weakref_slot=True)
class Limit:
    """Limit for attempts of calls: how many run at once, start in a time window, or wait. Attempts wait in FIFO order.

    One object is one limit: tools, nodes and agents that are given the same object share its permits. Equal objects are
    limits of their own, and so is a copy.

    Args:
        concurrency: maximum number of attempts that run at once; `None` for any number.
        queue: maximum number of attempts that wait; a further one is rejected. `None` for any number.
        rate: maximum number of attempts that start in a time window.
        key: function of the tool call (a mapping with `name`, `args`, `id`), or of the call and a `CallContext`. It
            returns a key such as a host or a user. Each key has this limit separately. `None` for one limit for all.
        shared: store that keeps the limit for many processes, such as `RedisLimits(url)`; `None` for this process
            alone.
        tenant: function like `key` that returns the tenant of a call. Tenants get permits in turns, however many calls
            of one tenant wait. `None` for the order of arrival alone.

    Raises:
        ValueError: for a number out of range.
        TypeError: for a key or tenant function that takes neither one argument nor two.
    """

    concurrency: int | None = None
    queue: int | None = None
    rate: Rate | None = None
    key: LimitKey | None = None
    shared: "SharedLimits | None" = None
    tenant: LimitKey | None = None

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_count("Limit(concurrency=...)", self.concurrency, least=1)
        if self.queue is not None:
            check_count("Limit(queue=...)", self.queue, least=0)
        check_type("Limit(rate=...)", self.rate, Rate, "Rate(20, per=1.0)")
        if self.key is not None:
            key_function("Limit(key=...)", self.key)
        if self.concurrency is None and self.rate is None:
            raise ValueError(f"{self!r} limits nothing: give it a concurrency or a rate")
        if self.shared is not None and not has_members_of(SharedLimits, self.shared):
            raise TypeError(f"Limit(shared=...) takes where it is kept, such as RedisLimits(url); got {self.shared!r}")
        if self.tenant is not None:
            key_function("Limit(tenant=...)", self.tenant)


@dataclass(frozen=True, slots=True, kw_only=True)
class PermitRequest:
    """Request for a permit of a limit that many processes share; made for one attempt of a call.

    Args:
        limit: the limit's numbers.
        name: name of the limited resource, such as "tool:fetch", for a store without a name of its own.
        key: text of the limit's key; "" for a limit without keys.
        tenant: text of the tenant; "" for a limit without tenants.
        title: name of the queue for errors: "the queue of tool 'fetch'".
    """

    limit: Limit
    name: str
    key: str = ""
    tenant: str = ""
    title: str


class Permit(Protocol):
    """Permit that one attempt requests from a shared limit, holds, and releases. The methods never wait."""

    failure: str | Exception | None
    """Reason for a refused permit, as a text or as an error to raise; `None` if the permit was granted. Set by the
    answer."""
    token: int | None
    """Fencing token of the permit: each later holder has a higher one. `None` if the store gave no token."""

    @property
    def is_lost(self) -> bool:
        """`True` if another process may hold the permit by now, because this process was unresponsive.

        Read before the body starts.
        """
        ...

    def begin(self) -> None:
        """Record that the attempt starts now; a rate limit counts the start at this moment."""
        ...

    def leave(self) -> None:
        """Release the permit, or leave the queue if it is not granted yet. May be called from any thread."""
        ...


@runtime_checkable
class SharedLimits(Protocol):
    """Store that enforces limits for many processes. May be called from any event loop and thread."""

    def check(self, limit: Limit, /) -> None:
        """Raise ValueError for a limit that the store cannot enforce."""
        ...

    def ask(self, request: PermitRequest, on_answer: Callable[[], object], /) -> Permit:
        """Request a permit, and return it at once, before it is granted or refused.

        Args:
            request: the request.
            on_answer: called once, from any thread, when the permit is granted or refused.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """Function with its arguments, to be run by an engine.

    Args:
        fn: the function, sync or async.
        args: positional arguments.
        kwargs: keyword arguments.
        title: name in errors, such as the name of the tool.
        call_id: id of the tool call that the body belongs to, for errors.
        grace: seconds for clean-up after a cancel, before the body is killed; `None` for the engine's own grace.
        on_begin: called in the caller's process, from any thread, when the body gets its turn; its timeout starts then.
        subject: the user's function or actor class, if `fn` is a wrapper of callboard's; `None` if `fn` is the user's.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    title: str
    call_id: str | None = None
    grace: float | None = None
    on_begin: Callable[[], object] | None = None
    subject: Callable[..., Any] | None = None


class Seat(Protocol):
    """Worker that is reserved for one owner, such as an actor. Modules in the worker keep their state between calls."""

    async def run_body(self, body: Body, /) -> Any:
        """Run an async function in the worker, concurrently with other calls; return its result or raise its error.

        All bodies of the worker share one event loop. If the caller is cancelled, the function is cancelled and has its
        grace for clean-up. The worker is ended if the function does not end within the grace.

        Raises:
            EngineError: if the worker has ended, or ends before there is a result.
            TypeError: for a function or arguments that cannot be sent; nothing was sent.
        """
        ...

    async def until_ended(self) -> str:
        """Wait until the worker has ended by itself or was killed; return a description of how it ended."""
        ...


@runtime_checkable
class Engine(Protocol):
    """Place where functions run outside of this process's event loop: other processes or other machines.

    Open it with `async with`, in each event loop that uses it. Several blocks may be open at once: the engine starts
    with the first block and ends with the last.
    """

    async def __aenter__(self) -> Any:
        """Start this engine in the event loop, unless another `async with` block has started it there already.

        Raises:
            ActorStartError: if the engine cannot start.
        """
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> bool | None:
        """End an `async with` block of the engine. The end of the last block waits until all workers have ended."""
        ...

    def check(self, fn: Callable[..., Any], /, *, title: str) -> None:
        """Raise TypeError if the engine cannot run a function, as far as this is known before the first call.

        Args:
            fn: the function.
            title: its name in errors.
        """
        ...

    async def run_body(self, body: Body, /) -> Any:
        """Run a sync or async function; return its result or raise its error.

        If the caller is cancelled, the function and everything that it started are ended. `run_body` waits for their
        end.

        Raises:
            EngineError: if there is no result; `ended` says whether the body had started.
            TypeError: for a function or arguments that cannot be sent; nothing was sent.
        """
        ...

    def seat(self, title: str, /) -> AbstractAsyncContextManager[Seat]:
        """Return a context manager that reserves a dedicated worker for an `async with` block, and ends it afterwards.

        Raises:
            EngineError: if no worker is available.
            ActorStartError: if the worker does not start.
        """
        ...


F = TypeVar("F")


@suggests_options(
    retries="retries are middleware: ToolNode(middleware=[callboard.middleware.Retry(attempts=3)])",
    retry="retries are middleware: ToolNode(middleware=[callboard.middleware.Retry(attempts=3)])",
    concurrency="write limit=Limit(concurrency=...)",
    max_concurrency="write limit=Limit(concurrency=...)",
    rate="write limit=Limit(rate=Rate(20, per=1.0))",
    cache="write ToolNode(middleware=[callboard.middleware.Cache({...})])",
)
@dataclass(frozen=True, slots=True, kw_only=True)
class CallPolicy:
    """Supervision options for the calls of one tool.

    A policy is given by the tool's name, `ToolNode([...], policies={"search": CallPolicy(timeout=2.0)})`, or stands at
    the tool as a decorator, `@CallPolicy(timeout=2.0)`. A policy by name replaces the one at the tool.

    Args:
        timeout: seconds for one attempt, from the start of its body; `None` for no timeout. Without a budget it also
            bounds each stretch of the call's middleware between two attempts.
        idle_timeout: seconds that an attempt may go without activity. Activity is `callboard.progress()`, or a nested
            call that begins or ends. `None` for any time.
        budget: seconds for the whole call: queue wait, attempts and backoff together.
        limit: limit of the attempts that run, start and wait.
        grace: seconds of clean-up after a cancel; `None` for the node's grace.
        idempotent: `True` if running a call twice does no harm; read before anything runs a call again. `None` for the
            tool's own mark: `@handler(idempotent=True)`, or `metadata={"idempotent": True}`.
        on_unknown: action for a call whose body started and whose outcome is unknown, because its actor, worker or
            process died. "rerun" runs it again, "ask" asks a person, "fail" tells the model once that the outcome is
            unknown. A call of an idempotent tool always runs again. `None` for the node's option, by default "fail".
        runs_in: engine for the bodies, such as a pool of worker processes that can be killed; `None` for this process.
        background: seconds from the start of its body after which a call of an agent goes on in the background; `True`
            for at once, `None` for never. The model then reads that the call goes on, and later its result in a
            message of its own. Only the runs of an agent with a checkpointer have background calls.

    Raises:
        ValueError: for a number out of range.
        TypeError: for an option of the wrong type.
    """

    timeout: float | None = None
    idle_timeout: float | None = None
    budget: float | None = None
    limit: Limit | None = None
    grace: float | None = None
    idempotent: bool | None = None
    on_unknown: OnUnknown | None = None
    runs_in: Engine | None = None
    background: float | bool | None = None

    def __post_init__(self) -> None:
        if self.background is not True:
            check_seconds("CallPolicy(background=...)", self.background)
        if self.on_unknown is not None:
            check_on_unknown("CallPolicy(on_unknown=...)", self.on_unknown)
        for name in ("timeout", "idle_timeout", "budget"):
            check_seconds(f"CallPolicy({name}=...)", getattr(self, name), zero=False)
        check_seconds("CallPolicy(grace=...)", self.grace)
        check_engine("CallPolicy(runs_in=...)", self.runs_in)
        check_type("CallPolicy(limit=...)", self.limit, Limit, "Limit(concurrency=8)")
        if self.idempotent is not None and not isinstance(self.idempotent, bool):
            raise TypeError(f"CallPolicy(idempotent=...) is True, False or None, got {self.idempotent!r}")

    def __call__(self, tool: F, /) -> F:
        """Attach this policy to a tool (function, actor's handler, or tool made of a function), and return the tool.

        Each node and each agent with the tool supervises its calls by this policy, with a limit of its own.

        Raises:
            TypeError: for an object that is no function and has none. Such a tool gets its policy by name.
        """
        functions = _functions_of(tool)
        try:
            for function in functions:
                function.__dict__[_POLICY] = self
        except AttributeError:
            functions = []
        if not functions:
            raise TypeError(
                f"@CallPolicy(...) stands at a function, or at a tool made of one, got {tool!r}; give other tools "
                "their policy by name: ToolNode([...], policies={'name': CallPolicy(...)})"
            )
        return tool


# In the `__dict__` of the function: each tool that is made of the function has it, and `functools.wraps` copies it.
_POLICY = "__callboard_policy__"


def _functions_of(tool: Any) -> list[Any]:
    """Return the functions that a LangChain tool calls; for a function, the function itself; else an empty list."""
    if isinstance(tool, partial) or not hasattr(tool, "args_schema"):
        return [tool] if callable(tool) else []
    return [function for name in ("func", "coroutine") if (function := getattr(tool, name, None)) is not None]


def policy_at(tool: object) -> CallPolicy | None:
    """Return the policy that a decorator has given to a tool, or `None`."""
    marks = (getattr(function, "__dict__", {}).get(_POLICY) for function in _functions_of(tool))
    return next((policy for policy in marks if isinstance(policy, CallPolicy)), None)


def has_members_of(protocol: type, value: object) -> bool:
    """Return whether an object has all members of a protocol, also through `__getattr__`; `False` for a class."""
    members = get_protocol_members(protocol)
    return not isinstance(value, type) and all(getattr(value, name, None) is not None for name in members)


def check_engine(name: str, value: object) -> None:
    """Raise TypeError unless an option's value is `None` or an engine; `name` is the option's name."""
    if value is not None and not has_members_of(Engine, value):
        raise TypeError(f"{name} is an engine, such as Processes(workers=2) of callboard_actors; got {value!r}")


def check_seconds(name: str, value: object, *, zero: bool = True) -> None:
    """Raise TypeError or ValueError unless a value is `None` or a number of seconds; `zero` allows the value 0."""
    if value is not None:
        check_duration(name, value, zero=zero)


def check_duration(name: str, value: object, *, zero: bool = True) -> None:
    """Raise TypeError or ValueError unless a value is a number of seconds; `zero` says whether 0 is valid."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number of seconds, got {value!r}")
    check_size(name, value)
    if math.isnan(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{name} must be {'0 or more' if zero else 'more than 0'} seconds, got {value!r}")


def check_size(name: str, value: float) -> None:
    """Raise ValueError for a whole number that is too large to calculate with as a time or a factor."""
    try:
        float(value)
    except OverflowError:
        # Without its text, which may have thousands of digits.
        bits = int(value).bit_length()
        raise ValueError(f"{name} is too large, a whole number of {bits:,} bits; math.inf is without a bound") from None


def check_factor(name: str, value: object) -> None:
    """Raise TypeError or ValueError unless a value is a number of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number, got {value!r}")
    check_size(name, value)
    if not value >= 1:
        raise ValueError(f"{name} must be 1 or more, got {value!r}")


def check_count(name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is a whole number, got {value!r}")
    if abs(value) > sys.maxsize:
        # Without its text, which may have thousands of digits. No list, thread or server counts to such a number.
        raise ValueError(f"{name} is at most {sys.maxsize:,}, got a whole number of {value.bit_length():,} bits")
    if value < least:
        raise ValueError(f"{name} must be {least} or more, got {value!r}")


@dataclass(frozen=True, slots=True)
class KeyFunction:
    """User's function that computes a key from a call, and optionally from the call's context."""

    function: Callable[..., Hashable]
    takes_context: bool
    """`True` if the function takes two arguments: the call and a `CallContext`."""
    name: str
    """Name of the option whose value is the function, for errors."""

    def of(self, call: object, context: Callable[[], CallContext]) -> Hashable:
        """Return the key of a call; raise TypeError if the key cannot be hashed."""
        # Only here: making a context takes time for each call.
        key = self.function(call, context()) if self.takes_context else self.function(call)
        try:
            hash(key)
        except TypeError as error:
            option = f"{self.name}: {getattr(self.function, '__qualname__', self.function)}"
            raise unhashable(option, key) from error
        return key


class ToolActor(NamedTuple):
    """Name of the actor that a tool calls, and the function that computes the actor's key."""

    name: str
    key: KeyFunction | None
    """Function that selects the actor by the tool call; `None` for a single actor."""


_ACTOR = "__callboard_actor__"


def mark_as_actors(function: object, actor: ToolActor) -> None:
    """Store in a tool's function the actor that the tool calls; `actor_behind` returns this actor."""
    setattr(function, _ACTOR, actor)


def actor_behind(function: object) -> ToolActor | None:
    """Return the actor whose handler a tool's function calls; `None` if the tool was not made of a handler.

    Args:
        function: the `coroutine` of a LangChain tool, or any other object.
    """
    actor = getattr(function, _ACTOR, None)
    return actor if isinstance(actor, ToolActor) else None


def unhashable(option: str, key: object) -> TypeError:
    """Return the TypeError for a key that cannot be hashed; `option` names the one that produced the key."""
    kind = type(key).__name__
    hint = "give a text, a number or a tuple of those, such as str(...) or tuple(...)"
    return TypeError(f"{option} gave a {kind} as a key, which is unhashable or has something unhashable in it; {hint}")


def key_function(name: str, key: object, call: str = "the tool call") -> KeyFunction:
    """Check a user's key function, and return it as a `KeyFunction`; `call` describes its argument in errors."""
    if not callable(key) or is_async(key):
        raise TypeError(f"{name} takes a plain function of {call}, or of {call} and a CallContext, got {key!r}")
    try:
        signature = inspect.signature(key)
    except ValueError:
        return KeyFunction(key, takes_context=False, name=name)  # a builtin without a signature
    required = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    takes_context = len(required) == 2  # a second parameter with a default is the author's own: no context is passed
    try:
        signature.bind(*[None] * (1 + takes_context))
    except TypeError as error:
        raise TypeError(
            f"{name} takes a function of {call}, `lambda call: ...`, or of {call} and a CallContext, "
            f"`lambda call, context: ...`; got {key!r} with the parameters {signature}"
        ) from error
    return KeyFunction(key, takes_context, name)


def check_path(name: str, value: object, example: str) -> None:
    """Raise TypeError if a value is no path."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} is a path, such as {example!r}; got {value!r}")


def check_type(name: str, value: object, expected_type: type, example: str) -> None:
    if value is not None and not isinstance(value, expected_type):
        raise TypeError(f"{name} takes {expected_type.__name__}, such as {example}; got {value!r}")
