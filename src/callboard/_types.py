"""The vocabulary of supervised calls: frozen records and the shapes of functions.

Imports no sibling and knows neither LangChain nor LangGraph: a call is a mapping with a `name`,
`args` and an `id`, whoever asked for it.
"""

import inspect
import math
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from typing_extensions import get_protocol_members

ToolCallLike = Mapping[str, Any]
"""A tool call as a model writes it: `{"name": ..., "args": {...}, "id": ...}`."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """What a key function may look at besides the call; to be read only.

    Args:
        config: the LangChain config of the run, with its `configurable`.
        state: of the graph or the agent that makes the call; `None` where there is none.
        context: what the run was given as `context`; `None` if that is nothing.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    state: Any = None
    context: Any = None


LimitKey = Callable[[ToolCallLike], Hashable] | Callable[[ToolCallLike, CallContext], Hashable]
"""Says which calls share one limit: `lambda call: call["args"]["host"]`, or, where that depends on more than the
call, `lambda call, context: context.config["configurable"]["user_id"]`."""

OnError = Literal["cancel", "finish"]
"""What an error that nobody handles does to the other calls of its batch."""


OnUnknown = Literal["rerun", "ask", "fail"]
"""What to do with a call of which only its beginning is known."""


def check_on_unknown(name: str, value: object) -> None:
    """Raise unless `value` says what becomes of a call whose outcome is unknown."""
    known = get_args(OnUnknown)
    if value not in known:
        raise ValueError(f"{name} is one of {known}, or None, got {value!r}")


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `calls` starts in any window of `per` seconds.

    The window slides: there is no moment at which two full bursts may follow each other.

    Args:
        calls: how many attempts may start in a window, at least 1.
        per: the length of the window in seconds, more than 0.

    Raises:
        ValueError: for any other number.
    """

    calls: int
    per: float = 1.0

    def __post_init__(self) -> None:
        check_count("Rate(calls=...)", self.calls, least=1)
        check_duration("Rate(per=...)", self.per, zero=False)
        if not math.isfinite(self.per):
            raise ValueError(f"Rate(per=...) is a number of seconds, got {self.per!r}")


@dataclass(frozen=True, slots=True)
class Limit:
    """How many calls may run, start and wait; first come, first served.

    Args:
        concurrency: how many attempts may run at once; `None` for any number.
        queue: how many more may wait for a place; the next one is rejected. `None` for any number.
        rate: how many attempts may start in a span of time.
        key: takes the tool call (a mapping with `name`, `args`, `id`), or that and a `CallContext`, and returns
            what is limited, such as a host or a user: every key has these numbers for itself. `None` for one
            place for all.
        shared: where the limit is kept for many processes, such as `RedisLimits(url)`; `None` for this one alone.
        tenant: as `key`, and returns for whom a call is made: of a shared limit, tenants have the free places in
            turns, however many calls of one of them wait. `None` for the order of arrival alone.

    Raises:
        ValueError: for a number out of range, and for tenants of a limit that is not shared.
        TypeError: for a key or a tenant that takes neither one argument nor two.
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
        _check_type("Limit(rate=...)", self.rate, Rate, "Rate(20, per=1.0)")
        if self.key is not None:
            key_function("Limit(key=...)", self.key)
        if self.concurrency is None and self.rate is None:
            raise ValueError(f"{self!r} limits nothing: give it a concurrency or a rate")
        if self.shared is not None and not has_members_of(SharedLimits, self.shared):
            raise TypeError(f"Limit(shared=...) takes where it is kept, such as RedisLimits(url); got {self.shared!r}")
        if self.tenant is not None:
            key_function("Limit(tenant=...)", self.tenant)
            if self.shared is None:
                raise ValueError("Limit(tenant=...) is for a shared limit; give it shared=..., or use key=... instead")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A place at a shared limit, as an attempt asks for it.

    Args:
        limit: its numbers.
        name: of what is limited, such as "tool:fetch", for a store that was given no name.
        key: a text for the key of the limit; "" where it has none.
        tenant: a text for whose call it is; "" where that does not matter.
        title: whose queue it waits in, for errors: "the queue of tool 'fetch'".
    """

    limit: Limit
    name: str
    key: str = ""
    tenant: str = ""
    title: str


class Stay(Protocol):
    """One attempt at a shared limit: it waits for a place, has it, and gives it back. Its methods never wait."""

    failure: str | Exception | None
    """Once answered: why there is no place, in words, or an error to be raised; `None` if there is one."""
    token: int | None
    """The fencing token of the place: whoever has it later has a higher one. `None` where nobody has given one."""

    @property
    def is_lost(self) -> bool:
        """Whether another process may have the place by now, as this one stood still; asked before the body begins."""
        ...

    def begin(self) -> None:
        """Note that the body begins now; a rate counts from here."""
        ...

    def leave(self) -> None:
        """Give the place back, or leave the queue; from any thread."""
        ...


@runtime_checkable
class SharedLimits(Protocol):
    """Where limits are kept for many processes; from any event loop and thread."""

    def check(self, limit: Limit, /) -> None:
        """Raise ValueError for a limit that cannot be kept there."""
        ...

    def ask(self, wanted: Wanted, on_answer: Callable[[], object], /) -> Stay:
        """Ask for a place, and never wait; `on_answer` is called once there is one or none, from any thread."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A function and its arguments, to be run somewhere else.

    Args:
        fn: what to run, sync or async.
        args: for it.
        kwargs: for it.
        title: what to call it in errors, such as the name of the tool.
        call_id: of the tool call that it is for, for errors.
        grace: seconds that it has to end when it is cancelled, before it is killed; `None` for the engine's own.
        on_begin: called when it has its turn, here and from any thread: its timeout runs from then.
        subject: what of the user's it is about, where `fn` is callboard's own: the function of a tool, the class of an
            actor; `None` if that is `fn` itself.
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
    """A worker that one owner has for itself, such as an actor: what functions keep in its modules stays there."""

    async def run_body(self, body: Body, /) -> Any:
        """Run an async function there, beside those that run; return what it returns, raise what it raises.

        All of them run on one event loop. If the caller is cancelled, the function is, and has its grace to end; one
        that does not ends the seat.

        Raises:
            EngineError: if the seat has ended, or ends before there is a result.
            TypeError: for what cannot cross; nothing was sent.
        """
        ...

    async def until_ended(self) -> str:
        """Wait until the worker has ended by itself, or was killed; says how, in words."""
        ...


@runtime_checkable
class Engine(Protocol):
    """Where bodies run, if not here: in processes, or on other machines.

    Whoever uses it has it open (`async with`), in each event loop in which it is used. It may be opened by several at
    once: it begins with the first of them and ends with the last.
    """

    async def __aenter__(self) -> Any:
        """Have it ready in this event loop.

        Raises:
            ActorStartError: if it cannot be.
        """
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> bool | None:
        """Need it no more; the last one waits until everything of it has ended."""
        ...

    def check(self, fn: Callable[..., Any], /, *, title: str) -> None:
        """Raise TypeError for a function that could not run there, as far as this can be known before it is called."""
        ...

    async def run_body(self, body: Body, /) -> Any:
        """Run a function, sync or async; return what it returns, raise what it raises.

        If the caller is cancelled, the function is ended, with whatever it has started, and waited for.

        Raises:
            EngineError: if it has no result; `ended` says whether it had begun.
            TypeError: for what cannot cross; nothing was sent.
        """
        ...

    def seat(self, title: str, /) -> AbstractAsyncContextManager[Seat]:
        """Have a worker for oneself while the block runs; it is ended when the block is left.

        Raises:
            EngineError: if there is none.
            ActorStartError: if it does not start.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPolicy:
    """How the calls of one tool are supervised.

    Args:
        timeout: seconds for one attempt, from the moment its body starts; `None` for no end.
        idle_timeout: seconds that an attempt may go without a sign of life, beside its timeout: without
            `callboard.progress()`, and without a call within it that begins or ends. `None` for any time.
        budget: seconds for the whole call: queue wait, attempts and backoff together.
        limit: how many of its calls may run, start and wait.
        grace: seconds of clean-up after a cancel; `None` for the node's.
        idempotent: whether running a call twice does no harm; asked before anything runs one again. `None` for what
            the tool says: a handler marked `@handler(idempotent=True)`, or `metadata={"idempotent": True}` of a tool.
        on_unknown: what becomes of a call whose body began and whose end nobody knows, because its actor, its worker
            or the process of the agent died: "rerun" it, "ask" a person, or let it "fail", so that the model is told
            once that the outcome is unknown. A call of an idempotent tool always runs again. `None` for what the
            node says, which is "fail" if it says nothing.
        runs_in: where its bodies run, such as a pool of processes, whose workers can be killed; `None` for here.

    Raises:
        ValueError: for a number out of range.
    """

    timeout: float | None = None
    idle_timeout: float | None = None
    budget: float | None = None
    limit: Limit | None = None
    grace: float | None = None
    idempotent: bool | None = None
    on_unknown: OnUnknown | None = None
    runs_in: Engine | None = None

    def __post_init__(self) -> None:
        if self.on_unknown is not None:
            check_on_unknown("CallPolicy(on_unknown=...)", self.on_unknown)
        for name in ("timeout", "idle_timeout", "budget"):
            check_seconds(f"CallPolicy({name}=...)", getattr(self, name), zero=False)
        check_seconds("CallPolicy(grace=...)", self.grace)
        check_engine("CallPolicy(runs_in=...)", self.runs_in)
        _check_type("CallPolicy(limit=...)", self.limit, Limit, "Limit(concurrency=8)")
        if self.idempotent is not None and not isinstance(self.idempotent, bool):
            raise TypeError(f"CallPolicy(idempotent=...) is True, False or None, got {self.idempotent!r}")


def has_members_of(protocol: type, value: object) -> bool:
    """Return whether an object that is no class has a protocol's members; `isinstance` ignores `__getattr__`."""
    members = get_protocol_members(protocol)
    return not isinstance(value, type) and all(getattr(value, name, None) is not None for name in members)


def check_engine(name: str, value: object) -> None:
    """Raise unless `value` is `None` or says where bodies run."""
    if value is not None and not has_members_of(Engine, value):
        raise TypeError(f"{name} is an engine, such as Processes(workers=2) of callboard_actors; got {value!r}")


def check_seconds(name: str, value: object, *, zero: bool = True) -> None:
    """Raise unless `value` is `None` or a duration in seconds."""
    if value is not None:
        check_duration(name, value, zero=zero)


def check_duration(name: str, value: object, *, zero: bool = True) -> None:
    """Raise unless `value` is a duration in seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number of seconds, got {value!r}")
    if math.isnan(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{name} must be {'0 or more' if zero else 'more than 0'} seconds, got {value!r}")


def check_count(name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be {least} or more, got {value!r}")


@dataclass(frozen=True, slots=True)
class KeyFunction:
    """A function that says what is alike, in whichever of its two forms it was given."""

    function: Callable[..., Hashable]
    takes_context: bool
    """Whether it looks at more than the call."""
    name: str
    """Of the option that it was given as, for errors."""

    def of(self, call: object, context: Callable[[], CallContext]) -> Hashable:
        """The key of a call; `context` is asked for by a function that takes it, and by no other.

        Raises:
            Exception: what the function raises; TypeError for what is no key, because it cannot be hashed.
        """
        key = self.function(call, context()) if self.takes_context else self.function(call)
        try:
            hash(key)
        except TypeError as error:
            where = f"{self.name}: {getattr(self.function, '__qualname__', self.function)}"
            raise unhashable(where, key) from error
        return key


def unhashable(where: str, key: object) -> TypeError:
    """What is said of a value that is no key; `where` says who gave it."""
    kind = type(key).__name__
    hint = "give a text, a number or a tuple of those, such as str(...) or tuple(...)"
    return TypeError(f"{where} gave a {kind} as a key, which is unhashable or has something unhashable in it; {hint}")


def key_function(name: str, key: object, call: str = "the tool call") -> KeyFunction:
    """Find out which form a key function has.

    Args:
        name: of the option, for errors.
        key: what was given.
        call: what the function is called with, in words.

    Raises:
        TypeError: if it is no plain function of one or two arguments.
    """
    if not callable(key) or any(inspect.iscoroutinefunction(one) for one in (key, type(key).__call__)):
        raise TypeError(f"{name} takes a plain function of {call}, or of {call} and a CallContext, got {key!r}")
    try:
        signature = inspect.signature(key)
    except ValueError:
        return KeyFunction(key, takes_context=False, name=name)  # a builtin that does not say
    needed = [parameter for parameter in signature.parameters.values() if _is_needed(parameter)]
    takes_context = len(needed) == 2  # a default says that it may stay away
    try:
        signature.bind(*[None] * (1 + takes_context))
    except TypeError as error:
        raise TypeError(
            f"{name} takes a function of {call}, `lambda call: ...`, or of {call} and a CallContext, "
            f"`lambda call, context: ...`; got {key!r} with the parameters {signature}"
        ) from error
    return KeyFunction(key, takes_context, name)


def _is_needed(parameter: inspect.Parameter) -> bool:
    by_place = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    return by_place and parameter.default is parameter.empty


def _check_type(name: str, value: object, kind: type, example: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} takes {kind.__name__}, such as {example}; got {value!r}")
