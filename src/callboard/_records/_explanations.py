"""`ToolExplanation`: the middleware, the policy and the limits around the calls of one tool, as data and in words."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from callboard._records._policies import CallPolicy, Limit

LinkSource = Literal["middleware", "wrap_tool_call", "awrap_tool_call"]
"""Option of the node from which a middleware comes."""

PolicySource = Literal["policies", "decorator", "node"]
"""Origin of a tool's policy: the node's option `policies`, the decorator `@CallPolicy(...)` at the tool, or the options
of the node."""


class ChainLink(NamedTuple):
    """Middleware in the chain around the calls of one tool."""

    name: str
    """Name of the middleware's class or function."""
    source: LinkSource
    """Option of the node from which the middleware comes."""
    effect: str = ""
    """Effect on calls of the tool, from `Middleware.effect_on`; empty if the middleware does not state it."""

    def __str__(self) -> str:
        name = self.name if self.source == "middleware" else f"{self.name} ({self.source})"
        return f"{name}: {self.effect}" if self.effect else name


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolExplanation:
    """Supervision that a node applies to the calls of one tool. `str()` gives it in words, from the outside inwards.

    Args:
        tool: name of the tool.
        node: name of the node.
        middleware: middleware around each call, the outermost first.
        policy: effective policy. Options that the tool's own policy leaves out are filled in.
        policy_source: origin of the policy.
        limits: limits of each attempt, in the order in which it waits for them: "tool", "node". Each limit with a `key`
            counts each key by itself.
        body: where the body of the tool runs, in words.
    """

    tool: str
    node: str
    middleware: tuple[ChainLink, ...]
    policy: CallPolicy
    policy_source: PolicySource
    limits: Mapping[str, Limit]
    body: str

    def __str__(self) -> str:
        lines = [f"A call of {self.tool!r} in the node {self.node!r} passes, from the outside inwards:"]
        lines += [f"{number}. {step}" for number, step in enumerate(self._steps(), start=1)]
        return "\n".join([*lines, f"Policy from: {self.policy_source}. Unknown outcome: {self._unknown_outcome()}."])

    def _steps(self) -> Iterator[str]:
        policy = self.policy
        if policy.budget is not None:
            yield f"budget: {policy.budget:g} s for the whole call"
        for link in self.middleware:
            yield str(link)
        for owner, limit in self.limits.items():
            is_repeated = owner == "node" and limit is self.limits.get("tool")
            yield f"limit of the {owner}: {'the same limit, taken once' if is_repeated else _limit_text(limit)}"
        if policy.timeout is not None:
            yield f"timeout: {policy.timeout:g} s for each attempt"
        if policy.idle_timeout is not None:
            yield f"idle timeout: {policy.idle_timeout:g} s without progress"
        if policy.grace is not None:
            yield f"grace: {policy.grace:g} s for clean-up after a cancel"
        yield f"body: {self.body}"

    def _unknown_outcome(self) -> str:
        if self.policy.idempotent:
            return "the call runs again, because the tool is idempotent"
        if self.policy.on_unknown == "rerun":
            return "the call runs again"
        return "a person is asked" if self.policy.on_unknown == "ask" else "the model is told"


def _limit_text(limit: Limit) -> str:
    rate = "" if limit.rate is None else f"{limit.rate.calls} starts in {limit.rate.per:g} s"
    phrases = (
        (limit.concurrency, f"{limit.concurrency} at once"),
        (limit.rate, rate),
        (limit.queue, f"at most {limit.queue} waiting"),
        (limit.key, f"for each key of {_function_name(limit.key)}"),
        (limit.tenant, f"in turns by {_function_name(limit.tenant)}"),
        (limit.shared, f"shared by {type(limit.shared).__name__}"),
    )
    return ", ".join(phrase for option, phrase in phrases if option is not None)


def _function_name(function: object) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)
