"""Explanation of the supervision of one tool, for `ToolNode.explain` and `Supervise.explain`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from langchain_core.tools import BaseTool

from callboard._langchain._plan import Plan
from callboard._records._explanations import ChainLink, PolicySource, ToolExplanation
from callboard._records._policies import CallPolicy, actor_behind
from callboard._util._suggestions import no_such
from callboard.tools._actor_tools import policy_of
from callboard.tools._middleware import hook, middleware_name
from callboard.tools._middleware_hooks import tools_to_approve
from callboard.tools._setup import Options, Setup
from callboard.tools._supervision import Supervision


def explain_in_node(name: str, options: Options, setup: Setup) -> ToolExplanation:
    """Return the explanation of one tool of a node; raise `ValueError` if the node has no tool of this name."""
    tool = setup.tools.get(name)
    if tool is None:
        raise ValueError(f"explain(...): {no_such('tool', name, setup.tools)}")
    plan = setup.plans.of(tool)
    return explain_tool(plan, setup.name, setup.supervision, options.middleware, _wrappers(options))


def explain_tool(
    plan: Plan,
    node: str,
    supervision: Supervision,
    middleware: Sequence[object],
    wrappers: Iterable[ChainLink] = (),
) -> ToolExplanation:
    """Return the explanation of one tool, in the order in which `chain_of` builds the chain.

    `wrappers` are around a call inside of `middleware`.
    """
    tool = plan.tool
    policy = supervision.policy(tool.name)
    policy = replace(policy, idempotent=bool(policy.idempotent), on_unknown=policy.on_unknown or "fail")
    by_owner = {"tool": policy.limit, "node": supervision.limit}
    return ToolExplanation(
        tool=tool.name,
        node=node,
        middleware=(*(_link(item, tool, policy) for item in middleware), *wrappers),
        policy=policy,
        policy_source=_policy_source(supervision, tool),
        limits={owner: limit for owner, limit in by_owner.items() if limit is not None},
        body=_body_text(plan, policy),
    )


def _link(item: object, tool: BaseTool, policy: CallPolicy) -> ChainLink:
    effect_on = hook(item, "effect_on")
    effect = "" if effect_on is None else effect_on(tool, policy)
    if tool.name in tools_to_approve(item):
        effect = "asks a person before the call"
    return ChainLink(middleware_name(item), "middleware", effect)


def _wrappers(options: Options) -> Iterator[ChainLink]:
    has_both = options.wrap_tool_call is not None and options.awrap_tool_call is not None
    if options.wrap_tool_call is not None:
        effect = "in runs by invoke and stream" if has_both else ""
        yield ChainLink(middleware_name(options.wrap_tool_call), "wrap_tool_call", effect)
    if options.awrap_tool_call is not None:
        effect = "in runs by ainvoke and astream" if has_both else ""
        yield ChainLink(middleware_name(options.awrap_tool_call), "awrap_tool_call", effect)


def _policy_source(supervision: Supervision, tool: BaseTool) -> PolicySource:
    if tool.name in supervision.names:
        return "policies"
    return "node" if policy_of(tool) is None else "decorator"


def _body_text(plan: Plan, policy: CallPolicy) -> str:
    actor = actor_behind(getattr(plan.tool, "coroutine", None))
    if actor is not None:
        keys = "" if actor.key is None else ", one for each key"
        return f"a handler of the actor {actor.name!r}{keys}"
    if policy.runs_in is not None:
        return f"on {type(policy.runs_in).__name__}"
    if plan.takes_thread:
        return "in a worker thread"
    return "in the event loop" + ("" if plan.sync_variant is None else ", in runs by invoke in a worker thread")
