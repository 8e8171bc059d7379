"""`Cache`: answer a call with what an identical one found out, a while ago or right now."""

import json
import warnings
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import NamedTuple

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from pydantic import ValidationError

from callboard._calls._call import current_call, note
from callboard._calls._thread_pool import THREADS, Threads
from callboard._documents import SharedDocuments
from callboard._extras import require
from callboard._langgraph import graph_task
from callboard._loops._current import current_loop
from callboard._loops._to_the_end import CutOffError, to_the_end
from callboard._suggestions import no_such
from callboard._types import CallContext, KeyFunction, check_count, check_seconds, key_function
from callboard.exceptions import CallboardWarning, CallError
from callboard.middleware._asking import check_store
from callboard.middleware._cached_bodies import body_of, is_function_alone
from callboard.middleware._fleet_results import FleetResults, Lead
from callboard.middleware._shared import Flight, Follower, Hit, SharedResults, Turn, raised_again
from callboard.tools._call_context import context_of
from callboard.tools._call_output import CallNext, Output
from callboard.tools._errors import is_control_flow
from callboard.tools._invoke import check_arguments
from callboard.tools._large_work import has_many, is_long, run_if_long
from callboard.tools._plan import Plan, plan_for
from callboard.tools._tool_facts import ToolFacts
from callboard.tools._tool_names import Missing, check_missing, check_tool_names, tool_names
from callboard.tools._vocabulary import ToolCallRequest

CacheKey = Callable[[ToolCallRequest], Hashable] | Callable[[ToolCallRequest, CallContext], Hashable]
"""Says which calls of a tool have the same result: equal keys do; `None` keeps a call away from the cache."""


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

_OWN_AFFAIRS = {"rejected", "deadline", "cancelled"}
"""How a call ends for reasons that an identical call need not have."""


class _Key(NamedTuple):
    """What two calls have to have in common to have one result."""

    tool: str
    body: Hashable
    """What runs: tools that were made for two users may have one name."""
    value: Hashable


_Flight = Flight[_Key, ToolMessage]

_led: ContextVar[tuple[_Flight, ...]] = ContextVar("callboard_led", default=())
"""The flights whose leaders we run below: to wait for one of these would be to wait for ourselves."""


class Cache:
    """Answers a call with the result of an identical one, and runs calls that are identical and in flight once.

    Only messages with the status "success" are kept; errors and commands never are. A call that finds an
    identical one in flight waits for it and shares its result or its error. If that call ends for reasons of
    its own (cancelled, interrupted, rejected, out of budget), the next in line runs.

    A call that a person has answered always runs. So do, where there is no `key`, the calls of a tool that is
    given more than its arguments: state, store, runtime, config or call id.

    Args:
        tools: the names of those whose calls need not be made again. `idempotent` in a policy is no such
            promise: to delete a file twice does no harm, to skip it the second time may.
        ttl: seconds for which a result is good; `math.inf` for no end.
        size: how many results are kept, at least 1; the least recently used goes first.
        key: takes the request, or that and a `CallContext`, and returns what the result depends on, or `None`
            for a call that is not to be cached; by default the arguments as canonical JSON. Tools never share
            results.
        missing: what a name in `tools` is that no tool of the node has: an "error", or one to "ignore".
        shared: a store such as `callboard_actors.redis.RedisDocuments(url)`: then all processes with it share results
            and calls in flight, a tool is what has its name, and only the clock of the server counts. Results that
            are not the same after JSON, and errors that were raised, stay in their process.
        name: of the cache, where `shared`: those of one name share results; by default all.
        version: of what the tools do, where `shared`; results of another version are not taken.

    Raises:
        ValueError: for a number out of range.
        TypeError: for tools that are no collection of names, or a key that is no plain function.
        ImportError: without the extra `middleware`.
    """

    def __init__(
        self,
        tools: Collection[str],
        *,
        ttl: float = 300.0,
        size: int = 1024,
        key: CacheKey | None = None,
        missing: Missing = "error",
        shared: SharedDocuments | None = None,
        name: str | None = None,
        version: str | int | None = None,
    ) -> None:
        check_missing("Cache", missing)
        check_store("Cache", shared, name=name, version=version)
        self._tools = tool_names("Cache(tools)", tools)
        check_seconds("Cache(ttl=...)", ttl, zero=False)
        check_count("Cache(size=...)", size, least=1)
        require("Cache(...)", "cachetools", extra="middleware")
        self._key_function = None if key is None else key_function("Cache(key=...)", key, "the request")
        self._shared: SharedResults[_Key, ToolMessage] = SharedResults(ttl, size)
        self._fleet = None if shared is None else FleetResults(shared, name, version, ttl, size)
        self._plans = ToolFacts(plan_for)
        self._warned: set[str] = set()
        self._missing: Missing = missing
        self._threads = Threads("Cache", THREADS)

    def check_tools(self, tools: Collection[str]) -> None:
        """Raise ValueError if a tool that was named is not among these."""
        check_tool_names("Cache(tools)", self._tools, tools, self._missing)

    def invalidate(self, tool: str, args: Mapping[str, object] | None = None, *, key: Hashable = None) -> None:
        """Forget results of a tool. What is in flight by now is not kept either, and no new call joins it.

        May be called from any thread. Where results are shared, other processes hear of it within a round trip, or
        when the server is back; later calls of this process run after it.

        Args:
            tool: its name.
            args: only the result for these arguments; where there is a key function, give `key` instead.
            key: only the results with this key.

        Raises:
            ValueError: for a tool that is not among those of the cache, or arguments where the key is another.
        """
        if tool not in self._tools:
            raise ValueError(f"invalidate: {no_such('tool', tool, self._tools)} in this cache")
        if args is not None:
            if key is not None or self._key_function is not None:
                raise ValueError("invalidate(args=...) is for a Cache without key=...; here, use invalidate(key=...)")
            key = _canonical(args)
        if self._fleet is not None:
            self._fleet.forget(tool, key)
        self._shared.forget(lambda kept: kept.tool == tool and (key is None or kept.value == key))

    def clear(self) -> None:
        """Forget everything, as `invalidate` does."""
        if self._fleet is not None:
            self._fleet.forget(None)
        self._shared.forget(lambda _: True)

    async def awrap_tool_call(self, request: ToolCallRequest, call_next: CallNext) -> Output:
        """Answer from the cache, or with what an identical call finds out, or run the call."""
        key = await self._key(request)
        if key is None:
            return await call_next(request)
        found = self._shared.enter(key, current_loop())
        if isinstance(found, Hit):
            note("cache_hit", age=found.age)
            return await self._for_call(found.result, request)
        if isinstance(found, Follower):
            return await self._follow(found, request, call_next)
        return await self._lead(found, request, call_next)

    async def _follow(
        self, follower: Follower[_Key, ToolMessage], request: ToolCallRequest, call_next: CallNext
    ) -> Output:
        if follower.flight in _led.get():
            self._shared.leave(follower)
            return await call_next(request)
        turn = await self._shared.turn(follower)
        if turn is Turn.LEAD:
            return await self._lead(follower.flight, request, call_next)
        if isinstance(turn, Turn):
            return await call_next(request)
        note("cache_shared")
        if isinstance(turn, ToolMessage):
            return await self._for_call(turn, request)
        try:
            raise _for_call_too(turn, request)
        finally:
            del turn  # whose traceback may lead here

    async def _lead(self, flight: _Flight, request: ToolCallRequest, call_next: CallNext) -> Output:
        loop = current_loop()
        turn: ToolMessage | Exception | Turn = Turn.LEAD
        before = _led.get()
        _led.set((*before, flight))
        lead: Lead | None = None
        text: str | None = None
        try:
            found = await self._find_elsewhere(flight.key, request)
            if isinstance(found, Hit):
                turn = found.result
                return await self._for_call(found.result, request)
            lead = found
            note("cache_miss")
            output = await call_next(request)
            turn = await self._to_share(output)
            text = await self._text_of(turn, lead)
            return output
        except Exception as error:
            # A copy, before those who called us add to it.
            turn = Turn.LEAD if _is_own_affair(error) else raised_again(error)
            raise
        finally:
            _led.set(before)
            keep = isinstance(turn, ToolMessage) and turn.status == "success"
            if lead is not None and self._fleet is not None:
                self._fleet.land(lead, turn if turn is Turn.LEAD else text or Turn.ALONE, keep=keep and bool(text))
            self._shared.land(flight, turn, loop, keep=keep and self._fleet is None)
            del turn  # whose traceback leads here

    async def _find_elsewhere(self, key: _Key, request: ToolCallRequest) -> Hit[ToolMessage] | Lead | None:
        """What other processes know or find out, or the task to find it out for them; `None` where there is none."""
        if self._fleet is None:
            return None
        if self._key_function is None and not self._is_known_by_its_name(key):
            return None
        # A long one takes a while to be read.
        document = await run_if_long(self._threads, key.value, partial(self._fleet.document_of, key.tool, key.value))
        if document is None:
            note("cache_skipped", reason="its key cannot be shared")
            return None
        return await self._fleet.enter(document, request, current_loop())

    async def _text_of(self, turn: ToolMessage | Turn, lead: Lead | None) -> str | None:
        """What other processes are told of a result."""
        if self._fleet is None or lead is None or isinstance(turn, Turn):
            return None
        text = None
        with suppress(CutOffError):  # a result is there, and is not lost where the call is cancelled meanwhile
            text = await to_the_end(partial(run_if_long, self._threads, turn, partial(self._fleet.text_of, turn)))
        if text is None:
            note("cache_skipped", reason="cannot be shared")
        return text

    async def _for_call(self, message: ToolMessage, request: ToolCallRequest) -> ToolMessage:
        """A copy of a message, as the answer to a call."""
        copy = partial(message.model_copy, update={"tool_call_id": request.tool_call["id"], "id": None}, deep=True)
        return await self._threads.run(copy) if has_many(message) else copy()

    async def _to_share(self, output: Output) -> ToolMessage | Turn:
        """What followers are told of a leader's result: a copy that nobody else has."""
        if not isinstance(output, ToolMessage):
            return Turn.ALONE
        if (call := current_call()) is not None and call.is_for_once:
            note("cache_skipped", reason="says something that is said once")
            return Turn.ALONE
        about = output.additional_kwargs.get("callboard")
        if isinstance(about, dict) and about.get("ended") in _OWN_AFFAIRS:
            return Turn.LEAD
        copy = partial(output.model_copy, deep=True)
        try:
            if not has_many(output):
                return copy()
            # A result is there, and is not lost where the call is cancelled meanwhile.
            return await to_the_end(partial(self._threads.run, copy))
        except Exception as error:  # an artifact that holds a connection, say
            note("cache_skipped", reason="cannot be copied", error=type(error).__name__)
            return Turn.ALONE

    async def _key(self, request: ToolCallRequest) -> _Key | None:
        """What the result depends on, or `None` for a call that has to run."""
        tool = request.tool
        name = request.tool_call["name"]
        if name not in self._tools or not isinstance(tool, BaseTool):
            return None
        if _is_answered(request):
            note("cache_skipped", reason="answered by a person")
            return None
        if self._key_function is not None:
            value = self._checked_key(self._key_function, request, tool)
        elif self._depends_on_more(name, tool):
            value = None
        else:
            value = await self._canonical(request.tool_call["args"])
        return None if value is None else _Key(name, body_of(tool), value)

    async def _canonical(self, args: Mapping[str, object]) -> str | None:
        if is_long(args):
            return await self._threads.run(partial(_canonical, args, _in_steps))
        return _canonical(args)

    def _checked_key(self, key: KeyFunction, request: ToolCallRequest, tool: BaseTool) -> Hashable:
        try:
            return key.of(request, partial(context_of, request))
        except Exception as error:
            if not _fit(self._plans.of(tool), request):
                return None  # the model's mistake, and the tool will tell it
            error.add_note(f"Raised by Cache(key=...) for a call of {tool.name!r}.")
            raise

    def _depends_on_more(self, name: str, tool: BaseTool) -> bool:
        """Whether the tool is given more than arguments, which a key of arguments knows nothing of."""
        plan = self._plans.of(tool)
        if plan.injected.none and plan.config_param is None:
            return False
        note("cache_skipped", reason="depends on more than its arguments")
        self._warn(name, f"does not cache the tool {name!r}: it is given more than its arguments")
        return True

    def _is_known_by_its_name(self, key: _Key) -> bool:
        """Whether a tool of that name does the same in all processes, as far as one can see."""
        if is_function_alone(key.body):
            return True
        note("cache_skipped", reason="is not known by its name")
        self._warn(key.tool, f"does not share results of the tool {key.tool!r}: it is more than a function")
        return False

    def _warn(self, tool: str, what: str) -> None:
        if tool not in self._warned:
            self._warned.add(tool)
            warnings.warn(
                f"Cache {what}. Say with Cache(key=...) what its results depend on, or take it out of Cache(tools).",
                CallboardWarning,
                stacklevel=2,
            )


def _canonical(
    args: Mapping[str, object], encoded: Callable[[Mapping[str, object]], str] = _ENCODER.encode
) -> str | None:
    """Arguments as JSON, whatever their order; `None` for what is no JSON."""
    try:
        return encoded(args)
    except (TypeError, ValueError, RecursionError):
        return None


def _in_steps(args: Mapping[str, object]) -> str:
    """JSON, as `encode` writes it, which would let no other thread go on meanwhile, the event loop's neither."""
    return "".join(_ENCODER.iterencode(args))


def _fit(plan: Plan, request: ToolCallRequest) -> bool:
    """Whether a tool accepts what the model wrote."""
    try:
        check_arguments(plan, request.tool_call)
    except ValidationError as error:
        supplied = plan.injected.names | plan.injected.forbidden
        return all(detail["loc"] and detail["loc"][0] in supplied for detail in error.errors())
    except Exception:  # a validator of the tool's own; the call itself will fail of it, and say so
        return False
    return True


def _is_answered(request: ToolCallRequest) -> bool:
    """Whether the call is run again with an answer: then its result is this call's alone."""
    task = graph_task(request.runtime.config)
    return task is not None and bool(task.scratchpad.resume or task.resume_map)


def _is_own_affair(error: Exception) -> bool:
    return is_control_flow(error) or (isinstance(error, CallError) and error.ended in _OWN_AFFAIRS)


def _for_call_too(error: Exception, request: ToolCallRequest) -> Exception:
    again = raised_again(error)
    if isinstance(again, CallError) and again is not error:
        again.call_id = request.tool_call["id"]
    return again
