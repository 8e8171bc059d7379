"""What the calls of a node are held to: policies, limits and threads; and which of them live now."""

import difflib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from langchain_core.messages import ToolCall, ToolMessage

from callboard._attempt import ThreadPlaces
from callboard._call import SupervisedCall, Terms
from callboard._limits import Limiter
from callboard._types import CallPolicy, Limit, Statistics, ToolCallLike, check_seconds
from callboard.exceptions import CallTimeoutError, DeadlineExceededError
from callboard.tools._errors import Judge, error_message

R = TypeVar("R")

OnFailure = Callable[[Exception], ToolMessage]
"""Makes a message of an error, or raises it."""
Rework = Callable[[ToolMessage, OnFailure], Awaitable[ToolMessage]]

_DEFAULT_THREADS = 40
"""Worker threads where the limits ask for no more; anyio's own number."""


class Supervision:
    """How calls are supervised on behalf of one object, which a user built.

    Args:
        owner: what that object is, for errors: "ToolNode".
        queue: whose queue it is that `limit` fills, for rejections: "node 'tools'".
        timeout: seconds for one attempt of every tool whose policy says nothing else.
        limit: for all calls together.
        policies: by tool name.
        grace: seconds of clean-up after a cancel.

    Raises:
        ValueError: for a number out of range.
        TypeError: for an option of the wrong kind.
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
    ) -> None:
        check_seconds(f"{owner}(grace=...)", grace)
        check_seconds(f"{owner}(timeout=...)", timeout, zero=False)
        if limit is not None and not isinstance(limit, Limit):
            raise TypeError(f"{owner}(limit=...) takes a Limit, such as Limit(concurrency=64); got {limit!r}")
        self.default = CallPolicy(timeout=timeout, grace=grace)
        self.policies = {name: _completed(name, policy, self.default) for name, policy in (policies or {}).items()}
        self.shared = [] if limit is None else [Limiter(limit, f"the queue of {queue}")]
        self.limiters = {name: [*_limiter(name, policy), *self.shared] for name, policy in self.policies.items()}
        self.threads = ThreadPlaces(_thread_count(limit, self.policies.values()))
        self.live: set[SupervisedCall[Any]] = set()

    def terms(self, call: ToolCallLike, wider: Sequence[Limiter] = ()) -> Terms:
        """The policy of a call's tool, and the limits that it has to pass, `wider` ones last."""
        name = call["name"]
        limiters = self.limiters.get(name, self.shared)
        return Terms(call, self.policies.get(name, self.default), [*limiters, *wider] if wider else limiters)

    async def run(
        self, supervised: SupervisedCall[Any], inner: Callable[[], Awaitable[R]], judge: Judge, rework: Rework
    ) -> R | ToolMessage:
        """Run what belongs to a call, within its budget.

        Args:
            supervised: the call.
            inner: what belongs to it.
            judge: has a text for the errors that become messages.
            rework: what links make of such a message, which never passed them.
        """
        self.live.add(supervised)
        try:
            if supervised.policy.budget is None:
                return await inner()
            return await supervised.within_budget(inner)
        except BaseException as exc:
            message = _message_at_end(supervised, exc, judge)
            if message is None:
                raise
            return await _reworked(supervised, message, judge, rework)
        finally:
            self.live.discard(supervised)

    def statistics(self) -> Statistics:
        """How many calls run and wait now, and how many threads outlived theirs."""
        live = list(self.live)
        return Statistics(
            running=sum(call.running > 0 for call in live),
            waiting=sum(call.waiting > 0 for call in live),
            abandoned_threads=len(self.threads.abandoned),
        )


def _message_at_end(supervised: SupervisedCall[Any], exc: BaseException, judge: Judge) -> ToolMessage | None:
    error = supervised.as_error(exc)
    if error is None:
        return None
    content = judge(error)
    if content is not None:
        supervised.handled = error
        return error_message(content, cast("ToolCall", supervised.call), error)
    if error is not exc:
        raise error from exc
    return None


async def _reworked(supervised: SupervisedCall[Any], message: ToolMessage, judge: Judge, rework: Rework) -> ToolMessage:
    """What the links make of a message; they have the grace for it, even if the budget is spent."""

    def failed(error: Exception) -> ToolMessage:
        content = judge(error)
        if content is None:
            raise error
        supervised.handled = error
        return error_message(content, cast("ToolCall", supervised.call), error)

    grace = supervised.grace
    links = partial(supervised.on_leash, partial(rework, message, failed), at_least=grace)
    try:
        return await supervised.within_budget(links, at_least=grace)
    except (CallTimeoutError, DeadlineExceededError) as error:
        return failed(error)


def unknown_policy(policies: Iterable[str], tools: Iterable[str]) -> str | None:
    """What to say of the first policy whose tool does not exist; `None` if all do."""
    known = sorted(tools)
    for name in policies:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            return f"policies[{name!r}]: there is no such tool, only {known}{hint}"
    return None


def _completed(name: str, policy: CallPolicy, default: CallPolicy) -> CallPolicy:
    if not isinstance(policy, CallPolicy):
        raise TypeError(f"policies[{name!r}] takes a CallPolicy, such as CallPolicy(timeout=2.0); got {policy!r}")
    return CallPolicy(
        timeout=default.timeout if policy.timeout is None else policy.timeout,
        budget=policy.budget,
        limit=policy.limit,
        grace=default.grace if policy.grace is None else policy.grace,
        idempotent=policy.idempotent,
        on_unknown=policy.on_unknown,
    )


def _limiter(name: str, policy: CallPolicy) -> list[Limiter]:
    return [] if policy.limit is None else [Limiter(policy.limit, f"the queue of tool {name!r}")]


def _thread_count(limit: Limit | None, policies: Iterable[CallPolicy]) -> int:
    limits = [limit, *(policy.limit for policy in policies)]
    return max([_DEFAULT_THREADS, *(one.concurrency for one in limits if one is not None and one.concurrency)])
