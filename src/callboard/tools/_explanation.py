"""Explanation of the supervision of one tool, for `ToolNode.explain`."""

from collections.abc import Iterator
from dataclasses import replace

from langchain_core.tools import BaseTool

from callboard._records._explanations import ChainLink, PolicySource, ToolExplanation
from callboard._records._policies import CallPolicy, actor_behind
from callboard._util._suggestions import no_such
from callboard.tools._actor_tools import policy_of
from callboard.tools._middleware import hook, middleware_name
from callboard.tools._middleware_hooks import tools_to_approve
from callboard.tools._setup import Options, Setup


def explain_tool(name: str, options: Options, setup: Setup) -> ToolExplanation:
    """Return the explanation of one tool of a node; raise `ValueError` if the node has no tool of this name."""
    tool = setup.tools.get(name)
    if tool is None:
        raise ValueError(f"explain(...): {no_such('tool', name, setup.tools)}")
    policy = setup.supervision.policy(name)
    policy = replace(policy, idempotent=bool(policy.idempotent), on_unknown=policy.on_unknown or "fail")
    by_owner = {"tool": policy.limit, "node": options.limit}
    return ToolExplanation(
        tool=name,
        node=setup.name,
        middleware=tuple(_links(options, tool, policy)),
        policy=policy,
        policy_source=_policy_source(options, tool),
        limits={owner: limit for owner, limit in by_owner.items() if limit is not None},
        body=_body_text(setup, tool, policy),
    )


def _links(options: Options, tool: BaseTool, policy: CallPolicy) -> Iterator[ChainLink]:
    """Yield the middleware in the order in which `chain_of` builds the chain."""
    for item in options.middleware:
        effect_on = hook(item, "effect_on")
        effect = "" if effect_on is None else effect_on(tool, policy)
        if tool.name in tools_to_approve(item):
            effect = "asks a person before the call"
        yield ChainLink(middleware_name(item), "middleware", effect)
    has_both = options.wrap_tool_call is not None and options.awrap_tool_call is not None
    if options.wrap_tool_call is not None:
        effect = "in runs by invoke and stream" if has_both else ""
        yield ChainLink(middleware_name(options.wrap_tool_call), "wrap_tool_call", effect)
    if options.awrap_tool_call is not None:
        effect = "in runs by ainvoke and astream" if has_both else ""
        yield ChainLink(middleware_name(options.awrap_tool_call), "awrap_tool_call", effect)


def _policy_source(options: Options, tool: BaseTool) -> PolicySource:
    if options.policies is not None and tool.name in options.policies:
        return "policies"
    return "node" if policy_of(tool) is None else "decorator"


def _body_text(setup: Setup, tool: BaseTool, policy: CallPolicy) -> str:
    actor = actor_behind(getattr(tool, "coroutine", None))
    if actor is not None:
        keys = "" if actor.key is None else ", one for each key"
        return f"a handler of the actor {actor.name!r}{keys}"
    if policy.runs_in is not None:
        return f"on {type(policy.runs_in).__name__}"
    plan = setup.plans.of(tool)
    if plan.takes_thread:
        return "in a worker thread"
    return "in the event loop" + ("" if plan.sync_variant is None else ", in runs by invoke in a worker thread")
