"""`Cache`: middleware that reuses the result of an identical call, finished or still running.

The key of a call contains the identity of the code that its tool runs.
"""

import inspect
import json
import warnings
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.cache.base import BaseCache

from callboard._calls._call import note
from callboard._calls._thread_pool import WorkerThreads
from callboard._langchain._errors import is_control_flow
from callboard._langchain._large_values import has_many, is_long, run_if_long
from callboard._langchain._outputs import CallNext, Output, facts_of
from callboard._langchain._plan import ToolFacts
from callboard._langgraph._vocabulary import ToolCallRequest, context_of
from callboard._loops._side_tasks import CutOffError, shielded
from callboard._records._policies import CallContext, CallPolicy, check_count, check_seconds, key_function
from callboard._util._extras import require
from callboard._util._identity import ByIdentity
from callboard._util._suggestions import no_such, suggests_options
from callboard.exceptions import CallboardWarning, CallError
from callboard.middleware._cache._local_results import Follower, Hit, Instruction, LocalResults, SharedCall, copy_error
from callboard.middleware._cache._stored_results import PendingResult, StoredResults
from callboard.tools._middleware import (
    Middleware,
    Order,
    bind_to_thread,
    has_valid_arguments,
    is_answered,
    running_call,
    takes_only_arguments,
)
from callboard.tools._middleware_hooks import check_tool_names, tool_names


def code_of_tool(tool: BaseTool) -> Hashable:
    """Return a hashable key for the code of a tool."""
    # It is the tool's function or, if it has none, the identity of the tool object.
    fn = getattr(tool, "coroutine", None) or getattr(tool, "func", None)
    return fn if inspect.isroutine(fn) else ByIdentity(tool)


def is_function_without_closure(body: Hashable) -> bool:
    """Return whether the code of a tool is a plain function without a closure, and so depends on arguments only."""
    # Such a function does the same in all processes that run the same program. A closure could hold a user or client.
    return inspect.isfunction(body) and not body.__closure__


CacheKey = Callable[[Any], Hashable] | Callable[[Any, CallContext], Hashable]
"""Function that returns the key of a call's result, or `None` for a call that is not cached.

Calls with equal keys share a result.
"""


_JSON_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

_DEFAULT_SIZE = 1024
"""Default of the maximum number of results."""
_UNSHARED_ENDS = {"rejected", "deadline", "cancelled"}
"""Values of `ended` after which an identical call may still succeed: it may have more time, or a free permit."""


class _ResultKey(NamedTuple):
    """Key of a result in the cache. Calls with equal keys share one result."""

    tool_name: str
    tool_code: Hashable
    """Code that the tool runs: two tools may have the same name, such as tools made for two users."""
    call_value: Hashable
    """Value that equal calls of the tool have in common, such as their arguments."""
    thread_id: str | None = None
    """Conversation whose calls share the result; `None` for all."""


_SharedCall = SharedCall[_ResultKey, ToolMessage]

_calls_led_by_task: ContextVar[tuple[_SharedCall, ...]] = ContextVar("callboard_led", default=())
"""Shared calls that the current task runs. It must not wait for one of them: it would wait for itself."""


@suggests_options()
class Cache(Middleware):
    """Middleware that reuses the result of an identical call, finished or still running.

    Only messages with the status "success" are kept, never errors and commands. A call that finds an identical one
    running waits for it, and shares its result or error. If that one ends for a reason of its own (cancelled,
    interrupted, rejected, out of budget), the next waiting call runs.

    A result with tokens of `Redact` is reused in its conversation only, and never stored in `store`.

    A call that a person has answered always runs. Without `key`, calls of a tool that receives more than its
    arguments always run, too: state, store, runtime, config or call id.

    Args:
        tools: names of the tools whose results may be reused. `idempotent` in a policy does not imply this:
            deleting a file twice does no harm, skipping the second deletion may.
        ttl: seconds for which a result is kept; `math.inf` for no limit.
        size: maximum number of results, at least 1, by default 1024; the least recently used is evicted. A `store` has
            bounds of its own.
        key: a function of the request, or of the request and a `CallContext`. It returns the key of the result, or
            `None` for a call that is not cached. Default: the arguments as canonical JSON. Different tools never
            share results.
        store: LangGraph cache for the results, such as `SqliteCache(path=...)` of `langgraph.cache.sqlite`. Processes
            with the same one share results, but not running calls. Tools are identified by name. Results that JSON
            would change are not stored. The middleware replaces the serializer of the cache: share it with no graph.
        version: version of the tools' behaviour. Results of other versions in the store are ignored.

    Raises:
        ValueError: if a number is out of range.
        ValueError: if both `size` and `store` are given.
        ValueError: if `store` has a serializer that stores pickles.
        TypeError: if `tools` is not a collection of names, `key` no plain function, or `store` no LangGraph cache.
        ImportError: if the extra `middleware` is not installed.
    """

    order = Order(
        "cache",
        not_around={"approval": "a cached result is handed out that nobody has approved"},
        not_inside={
            "breaker": "answers from the cache count as proof that the tool works",
            "redact": "secrets are cached in the clear",
        },
    )

    def __init__(
        self,
        tools: Collection[str],
        *,
        ttl: float = 300.0,
        size: int | None = None,
        key: CacheKey | None = None,
        store: BaseCache[Any] | None = None,
        version: str | int | None = None,
    ) -> None:
        if store is None and version is not None:
            raise ValueError("Cache(version=...) is for results that outlive the process; give it a store: store=...")
        if store is not None:
            if not isinstance(store, BaseCache):
                raise TypeError(
                    "Cache(store=...) takes a LangGraph cache, such as langgraph.cache.sqlite.SqliteCache(path=...); "
                    f"got {store!r}"
                )
            if size is not None:
                raise ValueError(f"Cache(size={size!r}, store=...): a store has bounds of its own; leave size out")
            if version is not None and not isinstance(version, (str, int)):
                raise TypeError(f"Cache(version=...) is a text or a number, got {version!r}")
        self._tools = tool_names("Cache(tools)", tools)
        check_seconds("Cache(ttl=...)", ttl, zero=False)
        if size is not None:
            check_count("Cache(size=...)", size, least=1)
        require("Cache(...)", "cachetools", extra="middleware")
        self._key_function = None if key is None else key_function("Cache(key=...)", key, "the request")
        self._ttl = ttl
        self._own_results: LocalResults[_ResultKey, ToolMessage] = LocalResults(
            ttl, _DEFAULT_SIZE if size is None else size
        )
        self._stored_results = None if store is None else StoredResults(store, version, ttl)
        self._takes_only_arguments = ToolFacts(takes_only_arguments)
        self._warned_tools: set[str] = set()
        self._thread_tools: set[str] = set()
        """Tools with a result that was only for its conversation: conversations share none of their results."""
        self._worker_threads = WorkerThreads("Cache")

    def check_tools(self, tools: Collection[str]) -> None:
        """Raise `ValueError` if the node lacks a tool that `tools` names."""
        check_tool_names("Cache(tools)", self._tools, tools)

    def invalidate(self, tool: str, args: Mapping[str, object] | None = None, *, key: Hashable = None) -> None:
        """Forget results of a tool. Results of running calls are not kept, and later calls do not wait for these calls.

        May be called from any thread. With a `store`, all results of the tool are forgotten, in all processes: in other
        processes a round trip later, or when the store can be used again.

        Args:
            tool: name of the tool.
            args: forget only the result for these arguments; with a key function, give `key` instead.
            key: forget only results with this key.

        Raises:
            ValueError: if the cache does not have the tool, or if `args` is given to a cache with a key function.
        """
        if tool not in self._tools:
            raise ValueError(f"invalidate: {no_such('tool', tool, self._tools)} in this cache")
        if args is not None:
            if key is not None or self._key_function is not None:
                raise ValueError("invalidate(args=...) is for a Cache without key=...; here, use invalidate(key=...)")
            key = _encode_canonically(args)
        if self._stored_results is not None:
            self._stored_results.forget(tool)
        self._own_results.forget(
            lambda result_key: result_key.tool_name == tool and (key is None or result_key.call_value == key)
        )

    def clear(self) -> None:
        """Forget all results of all tools, under the same rules as `invalidate`."""
        if self._stored_results is not None:
            for tool in self._tools:
                self._stored_results.forget(tool)
        self._own_results.forget(lambda _: True)

    def effect_on(self, tool: BaseTool, policy: CallPolicy) -> str:
        """Return in a few words what this middleware does with the calls of a tool."""
        if tool.name not in self._tools:
            return "nothing, the tool is not in its list"
        if self._key_function is None and not self._takes_only_arguments.of(tool):
            return "nothing, because the tool takes more than its arguments and there is no key function"
        return f"reuses the result of an equal call for {self._ttl:g} s"

    async def awrap_tool_call(self, request: ToolCallRequest, call_next: CallNext) -> Output:
        """Answer from the cache, wait for an identical running call, or run the call."""
        key = await self._make_key(request)
        return await (call_next(request) if key is None else self._run_shared(key, request, call_next))

    async def _run_shared(self, key: _ResultKey, request: ToolCallRequest, call_next: CallNext) -> Output:
        if key.thread_id is not None:
            bind_to_thread()  # also for a result that another call has made: enclosing calls repeat it
        entry = self._own_results.find_or_join(key)
        if isinstance(entry, Hit):
            note("cache_hit", age=entry.age)
            return await self._copy_for_call(entry.result, request)
        if isinstance(entry, Follower):
            return await self._wait_for_leader(entry, request, call_next)
        return await self._run_as_leader(entry, request, call_next)

    async def _wait_for_leader(
        self, follower: Follower[_ResultKey, ToolMessage], request: ToolCallRequest, call_next: CallNext
    ) -> Output:
        # A tool may call itself with the same arguments. Such an inner call runs, because its leader is its caller.
        if follower.shared_call in _calls_led_by_task.get():
            self._own_results.remove_follower(follower)
            return await call_next(request)
        outcome = await self._own_results.wait_for_outcome(follower)
        if outcome is Instruction.LEAD:
            # From here this call leads the shared call and must end it; nothing may be awaited in between.
            return await self._run_as_leader(follower.shared_call, request, call_next)
        if isinstance(outcome, Instruction):
            # The outcome may have been for one conversation only. This call then shares with calls of its own.
            key = self._restrict_to_thread(follower.shared_call.key, request)
            return await (
                call_next(request) if key == follower.shared_call.key else self._run_shared(key, request, call_next)
            )
        note("cache_shared")
        if isinstance(outcome, ToolMessage):
            return await self._copy_for_call(outcome, request)
        error = copy_error(outcome)
        if isinstance(error, CallError) and error is not outcome:
            error.call_id = request.tool_call["id"]
        try:
            raise error
        finally:
            del outcome, error  # breaks a reference cycle: the error's traceback may refer to this frame

    async def _run_as_leader(self, shared_call: _SharedCall, request: ToolCallRequest, call_next: CallNext) -> Output:
        # The initial value counts if the call is cancelled, which `except Exception` does not catch: the next waiting
        # call leads then.
        outcome: ToolMessage | Exception | Instruction = Instruction.LEAD
        outer_shared_calls = _calls_led_by_task.get()
        _calls_led_by_task.set((*outer_shared_calls, shared_call))
        try:
            stored_or_pending = await self._find_stored(shared_call.key)
            if isinstance(stored_or_pending, Hit):
                note("cache_hit", age=stored_or_pending.age)
                outcome = stored_or_pending.result
                return await self._copy_for_call(stored_or_pending.result, request)
            note("cache_miss")
            output = await call_next(request)
            outcome = await self._shareable_result(output)
            if stored_or_pending is not None and isinstance(outcome, ToolMessage) and outcome.status == "success":
                await self._store_result(stored_or_pending, outcome, self._key_for_keeping(shared_call.key, request))
            return output
        except Exception as error:
            # A copy for the followers, taken now: outer frames will add notes and traceback entries to this error.
            is_unshared = is_control_flow(error) or (isinstance(error, CallError) and error.ended in _UNSHARED_ENDS)
            outcome = Instruction.LEAD if is_unshared else copy_error(error)
            raise
        finally:
            # Nothing below waits, so that a cancelled leader still ends its shared call. A shared call that never ends
            # would block all its followers.
            _calls_led_by_task.set(outer_shared_calls)
            # With a store only the store keeps results: a result kept here, too, would miss invalidations of other
            # processes.
            is_kept = self._stored_results is None and isinstance(outcome, ToolMessage) and outcome.status == "success"
            key = self._key_for_keeping(shared_call.key, request)
            self._own_results.end_shared_call(shared_call, outcome, is_kept=is_kept, key=key)
            del outcome  # breaks a reference cycle: the error's traceback refers to this frame

    async def _find_stored(self, key: _ResultKey) -> Hit[ToolMessage] | PendingResult | None:
        """Return the stored result of a call, or a `PendingResult` for `_store()`; `None` to use no store."""
        if self._stored_results is None or key.thread_id is not None:
            return None
        # Other processes may reuse the results of a plain function by its name, and those of no other tool.
        if self._key_function is None and not is_function_without_closure(key.tool_code):
            note("cache_skipped", reason="is not known by its name")
            self._warn_once(
                key.tool_name, f"does not share results of the tool {key.tool_name!r}: it is more than a function"
            )
            return None
        # Hashing a long key takes a while, so it runs in a thread.
        address = await run_if_long(
            self._worker_threads,
            key.call_value,
            partial(self._stored_results.make_address, key.tool_name, key.call_value),
        )
        if address is None:
            note("cache_skipped", reason="its key cannot be shared")
            return None
        return await self._stored_results.find_result(address)

    async def _store_result(self, pending_result: PendingResult, message: ToolMessage, key: _ResultKey) -> None:
        """Write the result of a call to the store, unless it has no JSON form or belongs to one conversation."""
        assert self._stored_results is not None
        if key.thread_id is not None:
            note("cache_skipped", reason="is only for its conversation")
            return
        with suppress(CutOffError):  # the result exists: a cancellation during the conversion must not lose it
            await shielded(partial(self._write_result, self._stored_results, pending_result, message))

    async def _write_result(
        self, stored_results: StoredResults, pending_result: PendingResult, message: ToolMessage
    ) -> None:
        text = await run_if_long(self._worker_threads, message, partial(stored_results.serialize_message, message))
        if text is None:
            note("cache_skipped", reason="cannot be shared")
        else:
            await stored_results.store_result(pending_result, text)

    async def _copy_for_call(self, message: ToolMessage, request: ToolCallRequest) -> ToolMessage:
        """Return a deep copy of a cached message, with the id of this call."""
        copy = partial(message.model_copy, update={"tool_call_id": request.tool_call["id"], "id": None}, deep=True)
        return await self._worker_threads.run(copy) if has_many(message) else copy()

    async def _shareable_result(self, output: Output) -> ToolMessage | Instruction:
        """Return a copy of the result for waiting identical calls, or a `Turn` if one or all of them must run."""
        if not isinstance(output, ToolMessage):
            # A `Command` changes the state of its own graph run, so every call needs its own.
            return Instruction.ALONE
        if (call := running_call()) is not None and call.do_not_cache:
            note("cache_skipped", reason="says something that is said once")
            return Instruction.ALONE
        if facts_of(output).get("ended") in _UNSHARED_ENDS:
            return Instruction.LEAD
        copy = partial(output.model_copy, deep=True)
        try:
            if not has_many(output):
                return copy()
            # The result exists: a cancellation during the copy must not lose it.
            return await shielded(partial(self._worker_threads.run, copy))
        except Exception as error:  # such as an artifact that holds an open connection
            note("cache_skipped", reason="cannot be copied", error=type(error).__name__)
            return Instruction.ALONE

    async def _make_key(self, request: ToolCallRequest) -> _ResultKey | None:
        """Return the key of the call's result in the cache, or `None` if the call must run."""
        tool = request.tool
        name = request.tool_call["name"]
        if name not in self._tools or not isinstance(tool, BaseTool):
            return None
        if is_answered(request):
            note("cache_skipped", reason="answered by a person")
            return None
        call_value: Hashable
        if self._key_function is not None:
            try:
                call_value = self._key_function.of(request, partial(context_of, request))
            except Exception as error:
                if not has_valid_arguments(request):
                    return None  # the arguments are invalid, which the tool itself will report to the model
                error.add_note(f"Raised by Cache(key=...) for a call of {tool.name!r}.")
                raise
        elif self._takes_only_arguments.of(tool):
            args = request.tool_call["args"]
            call_value = (
                await self._worker_threads.run(partial(_encode_canonically, args))
                if is_long(args)
                else _encode_canonically(args)
            )
        else:
            # Such as injected state: equal arguments do not mean equal results.
            note("cache_skipped", reason="depends on more than its arguments")
            self._warn_once(name, f"does not cache the tool {name!r}: it is given more than its arguments")
            return None
        return (
            None
            if call_value is None
            else self._restrict_to_thread(_ResultKey(name, code_of_tool(tool), call_value), request)
        )

    def _restrict_to_thread(self, key: _ResultKey, request: ToolCallRequest) -> _ResultKey:
        """Return the key, restricted to this conversation if a result of the tool was for one conversation only."""
        if key.tool_name not in self._thread_tools:
            return key
        thread_id = request.runtime.config.get("configurable", {}).get("thread_id")
        return key._replace(thread_id="" if thread_id is None else str(thread_id))

    def _key_for_keeping(self, key: _ResultKey, request: ToolCallRequest) -> _ResultKey:
        """Return the key for caching a call's result; it names the conversation if no other one may use the result."""
        call = running_call()
        if call is not None and call.only_for_thread:
            self._thread_tools.add(key.tool_name)
        return self._restrict_to_thread(key, request)

    def _warn_once(self, tool: str, problem: str) -> None:
        if tool not in self._warned_tools:
            self._warned_tools.add(tool)
            warnings.warn(
                f"Cache {problem}. Say with Cache(key=...) what its results depend on, or take it out of Cache(tools).",
                CallboardWarning,
                stacklevel=2,
            )


def _encode_canonically(args: Mapping[str, object]) -> str | None:
    """Return the arguments of a call as JSON with sorted keys, or `None` if they have no JSON form."""
    try:
        # In small steps: the encoder's `encode` would hold the GIL until it is done, and so stall the event loop.
        return "".join(_JSON_ENCODER.iterencode(args))
    except (TypeError, ValueError, RecursionError):
        return None
