"""Supervision of a node's calls: policies, limits, worker threads, and the running batches."""

import math
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from anyio.lowlevel import checkpoint
from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool

from callboard._calls._batch import Batch
from callboard._calls._call import CallOptions, SupervisedCall
from callboard._calls._durations import warn_about_milliseconds, warn_about_unreachable_timeout
from callboard._calls._limits import AnyLimiter, Limiter, SharedLimiter, limiter_of
from callboard._calls._thread_pool import ThreadPermits
from callboard._langchain._errors import error_message
from callboard._loops._bridge import stands_still
from callboard._loops._current import current_loop, run_there
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._forks import forget_tasks_after_fork
from callboard._loops._protocol import Wakeup
from callboard._records._policies import (
    CallContext,
    CallPolicy,
    Engine,
    Limit,
    OnUnknown,
    ToolCallLike,
    check_count,
    check_on_unknown,
    check_seconds,
)
from callboard._records._reports import LiveCall, Statistics
from callboard._util._callers import warn_user
from callboard._util._suggestions import no_such
from callboard.exceptions import CallTimeoutError, DeadlineExceededError, ForegroundCallWarning
from callboard.tools._actor_tools import policy_of
from callboard.tools._error_policy import Judge

R = TypeVar("R")

OnFailure = Callable[[Exception], ToolMessage]
"""Function that returns the error message for an error, or raises the error."""
Rework = Callable[[ToolMessage, OnFailure], Awaitable[ToolMessage]]

_BY_NAME = "takes a CallPolicy by the name of each tool, such as {'search': CallPolicy(timeout=2.0)}"

_DEFAULT_THREADS = 40
"""Number of worker threads, unless a limit needs more; the default of anyio."""


class Supervision:
    """Policies, limits and worker threads for the calls of one object that a user has built, such as a node.

    `owner` names the object's class in errors ("ToolNode"), `queue` the queue of `limit` in rejections
    ("node 'tools'"). `timeout` and `on_unknown` apply to every tool whose policy sets none. `label` names the policy of
    a tool in errors and warnings.
    """

    def __init__(
        self,
        owner: str,
        queue: str,
        *,
        timeout: float | None,
        limit: Limit | None,
        policies: Mapping[str, CallPolicy] | None,
        grace: float,
        on_unknown: OnUnknown | None = None,
        label: str = "policies[{!r}]",
    ) -> None:
        if cast("object", grace) is None:
            raise TypeError(
                f"{owner}(grace=...) is a number of seconds, got None; leave it out for {DEFAULT_GRACE:g} s"
            )
        check_seconds(f"{owner}(grace=...)", grace)
        check_seconds(f"{owner}(timeout=...)", timeout, zero=False)
        if limit is not None and not isinstance(limit, Limit):
            raise TypeError(f"{owner}(limit=...) takes a Limit, such as Limit(concurrency=64); got {limit!r}")
        if timeout is not None:
            warn_about_milliseconds(f"{owner}(timeout=...)", timeout)
        if on_unknown is not None:
            check_on_unknown(f"{owner}(on_unknown=...)", on_unknown)
        self.default = CallPolicy(timeout=timeout, grace=grace, on_unknown=on_unknown)
        self._owner = owner
        self.limit = limit
        self._adoption_lock = threading.Lock()
        self.policies: dict[str, CallPolicy] = {}
        self.engines: dict[str, Engine] = {}
        """Engines for the bodies of some tools, by tool name."""
        self.shared = [] if limit is None else [limiter_of(limit, queue, queue)]
        self.limiters: dict[str, list[Limiter | SharedLimiter]] = {}
        self.grace = grace
        """Seconds of clean-up after a cancel for a whole run: the longest grace of all policies."""
        self.threads = ThreadPermits(_DEFAULT_THREADS).at_least(None if limit is None else limit.concurrency)
        self.forget_tasks()
        forget_tasks_after_fork(self)
        self._warned_tools: set[str] = set()
        policies_by_name: object = {} if policies is None else policies
        if not isinstance(policies_by_name, Mapping):
            raise TypeError(f"{owner}(policies=...) {_BY_NAME}; got {policies!r}")
        self.names = frozenset(policies_by_name)
        """Names of the tools whose policies were given by name, and not by a decorator."""
        for name, policy in policies_by_name.items():
            if not isinstance(name, str):
                raise TypeError(f"{owner}(policies=...) {_BY_NAME}; got {name!r} for a name")
            tool_label = label.format(name)
            if not isinstance(policy, CallPolicy):
                raise TypeError(f"{tool_label} takes a CallPolicy, such as CallPolicy(timeout=2.0); got {policy!r}")
            self._add(name, policy, tool_label)

    def forget_tasks(self) -> None:
        """Forget all batches: a forked child process has the objects, but no event loop that runs them."""
        self.batches: set[Batch[Any]] = set()
        """Running batches; a set of their calls would cost 0.1 KB per call."""

    def _add(self, name: str, policy: CallPolicy, label: str) -> None:
        """Set the policy of a tool; options that are missing in it are taken from the default policy."""
        for option in ("timeout", "idle_timeout", "budget"):
            warn_about_milliseconds(f"{label}: CallPolicy({option}=...)", getattr(policy, option))
        warn_about_unreachable_timeout(f"{label}: CallPolicy", policy.timeout, policy.budget)
        default = self.default
        self.policies[name] = policy = replace(
            policy,
            timeout=default.timeout if policy.timeout is None else policy.timeout,
            grace=default.grace if policy.grace is None else policy.grace,
            on_unknown=default.on_unknown if policy.on_unknown is None else policy.on_unknown,
        )
        if policy.runs_in is not None:
            self.engines[name] = policy.runs_in
        # The tool's own limit first, the node's last: a call that waits for its tool holds no permit of the node.
        tool_limiters = [limiter_of(policy.limit, f"tool:{name}", f"tool {name!r}")] if policy.limit else []
        # Once, if the tool and the node have the same limit: a call must not wait for the permit that it holds.
        self.limiters[name] = [*dict.fromkeys([*tool_limiters, *self.shared])]
        self.grace = max(self.grace, policy.grace or 0.0)
        self.threads = self.threads.at_least(None if policy.limit is None else policy.limit.concurrency)

    def adopt(self, tools: Iterable[BaseTool]) -> None:
        """Add the policies that decorators have set on tools; a policy that was given by tool name has priority."""
        # `Supervise` learns the tools in its first calls, which may run in several threads: two limiters for one tool
        # would let twice as many calls run.
        with self._adoption_lock:
            for tool in tools:
                if tool.name not in self.policies and (policy := policy_of(tool)) is not None:
                    self._add(tool.name, policy, f"tool {tool.name!r}")

    def terms(
        self,
        call: ToolCallLike,
        run_limiters: Sequence[AnyLimiter] = (),
        context: Callable[[], CallContext] = CallContext,
    ) -> CallOptions:
        """Return the policy and the limits of a call; `run_limiters` are further limits, for the whole run."""
        name = call["name"]
        limiters = self.limiters.get(name, self.shared)
        if run_limiters:
            limiters = [*limiters, *run_limiters]
        return CallOptions(call, self.policies.get(name, self.default), limiters, context)

    def policy(self, name: str) -> CallPolicy:
        return self.policies.get(name, self.default)

    def initial_permits(self, name: str) -> dict[str, float]:
        """Return how many calls of a tool can start immediately under each of its limits, by the name of the limit."""
        permits = {} if self.limit is None else {"node": _permits_of(self.limit)}
        if (limit := self.policy(name).limit) is not None:
            permits[f"tool:{name}"] = _permits_of(limit)
        return permits

    def check_tools(self, tools: Collection[str]) -> None:
        """Raise ValueError if a policy was given for a name that none of the node's tools has."""
        if (unknown := next((name for name in self.names if name not in tools), None)) is not None:
            raise ValueError(f"{self._owner}(policies=...): {no_such('tool', unknown, tools)}")

    def note_idempotent(self, tool: str) -> None:
        """Record a tool as safe to repeat, unless its policy sets `idempotent`."""
        policy = self.policy(tool)
        if policy.idempotent is None:
            self.policies[tool] = replace(policy, idempotent=True)

    def policies_of(self, tools: Iterable[str]) -> dict[str, CallPolicy]:
        return {name: self.policy(name) for name in tools}

    def warn_about_foreground(self, tool: str) -> None:
        """Warn once that the calls of a tool with a background policy end with their batch."""
        if tool not in self._warned_tools:
            self._warned_tools.add(tool)
            warn_user(
                f"the policy of the tool {tool!r} has background=, and its calls end with their batch: only runs of an "
                "agent of create_agent or create_react_agent with a checkpointer keep calls in the background, unless "
                "they run within another call or a graph",
                ForegroundCallWarning,
            )

    def statistics(self) -> Statistics:
        """Return the present numbers of running and waiting calls, and of abandoned threads."""
        live = self.live_calls()
        return Statistics(
            running=sum(call.running > 0 for call in live),
            waiting=sum(call.waiting > 0 for call in live),
            abandoned_threads=len(self.threads.abandoned),
        )

    def running(self) -> list[LiveCall]:
        """Return the calls that have not ended; may be called from any thread."""
        return [call.describe() for call in self.live_calls()]

    async def cancel(self, call_id: str, reason: str, thread_id: str | None) -> bool:
        """Cancel each call with an id, and wait until nothing of it runs; return whether a call was cancelled."""
        for name, value in (("call_id", call_id), ("reason", reason)):
            if not isinstance(value, str):
                raise TypeError(f"cancel({name}=...) is a text, got {value!r}")
        thread_id = None if thread_id is None else str(thread_id)  # as in a config, where it may be a number
        calls = [call for call in self.live_calls() if call.id == call_id and thread_id in (None, call.thread_id)]
        if len(threads := {call.thread_id for call in calls}) > 1:
            raise ValueError(
                f"cancel(): calls with the id {call_id!r} run in several threads, {sorted(map(repr, threads))}; give "
                "the thread_id of one"
            )
        if any(stands_still(call.loop) for call in calls):
            raise RuntimeError(
                "cancel(): the call runs in the event loop that waits for this: await it there, or call it in a thread"
            )
        return await cancel_calls(calls, reason)

    def live_calls(self) -> list[SupervisedCall[Any]]:
        """Return the calls of which something runs; may be called from any thread."""
        performers = dict.fromkeys(call.performer for batch in list(self.batches) for call in batch.calls)
        return [call for call in performers if not call.is_over]


async def cancel_calls(calls: Sequence[SupervisedCall[Any]], reason: str) -> bool:
    """Cancel calls, wait until nothing of them runs, and return whether one was cancelled."""
    loop = current_loop()
    await checkpoint()
    wakeups: list[Wakeup] = []
    for call in calls:
        wakeup = loop.wakeup()
        if run_there(call.loop, partial(call.cancel, reason, wakeup)):
            wakeups.append(wakeup)
    for wakeup in wakeups:
        await wakeup.wait()
    return any(call.cancel_reason is not None for call in calls)


async def run_judged(
    supervised_call: SupervisedCall[Any], inner: Callable[[], Awaitable[R]], judge: Judge, rework: Rework
) -> R | ToolMessage:
    """Run a call within its time budget, and return its output, or the message for its error."""
    try:
        if supervised_call.policy.budget is None:
            running = inner()
            del inner  # this frame waits as long as the call: it should not keep the closure in memory
            return await running
        return await supervised_call.within_budget(inner)
    except BaseException as exc:
        if (message := await message_for(supervised_call, exc, judge, rework)) is None:
            raise
        return message


async def message_for(
    supervised_call: SupervisedCall[Any], exc: BaseException, judge: Judge, rework: Rework
) -> ToolMessage | None:
    """Return the message for the error that a call has ended with; `None` if the caller must raise the error."""

    def message_of(error: Exception) -> ToolMessage | None:
        if (content := judge(error)) is None:
            return None
        supervised_call.handled_error = error
        return error_message(content, cast("ToolCall", supervised_call.call), error)

    def on_failure(error: Exception) -> ToolMessage:
        if (replacement := message_of(error)) is None:
            raise error
        return replacement

    # Never raised here: this frame, which refers to the error, would be in its traceback, a reference cycle.
    if (error := supervised_call.as_error(exc)) is None:
        return None
    if (message := message_of(error)) is None:
        if error is not exc:
            raise error from exc
        return None
    # The error may be the spent budget itself: without the grace, redaction of its message would never run.
    grace = supervised_call.time_limits.grace
    rework_in_time = partial(supervised_call.within_timeout, partial(rework, message, on_failure), at_least=grace)
    try:
        return await supervised_call.within_budget(rework_in_time, at_least=grace)
    except (CallTimeoutError, DeadlineExceededError) as error:
        return on_failure(error)


async def keep_message(message: ToolMessage, _: object) -> ToolMessage:
    """Return the error message unchanged, where no middleware may change it."""
    return message


def _permits_of(limit: Limit) -> float:
    """Return the number of calls that a limit lets start immediately while no other call uses it."""
    return min(limit.concurrency or math.inf, math.inf if limit.rate is None else limit.rate.calls)


def limiter_of_run(concurrency: int) -> Limiter:
    """Return a limiter for all calls of a run, from `max_concurrency` in the run's config."""
    check_count("config['max_concurrency']", concurrency, least=1)
    return Limiter(Limit(concurrency=concurrency), "max_concurrency")
