"""`ToolNode.explain` and `Supervise.explain`: what is around the calls of one tool, and in which order."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import StructuredTool, tool
from pydantic.v1 import BaseModel as BaseModelV1

from callboard import Actor, CallPolicy, ChainLink, Limit, Rate, ToolNode, child, create_react_agent, handler, tool_call
from callboard.guards import Redact, RepairArguments, Sanitize
from callboard.middleware import (
    Cache,
    CircuitBreaker,
    Fallback,
    LoopGuard,
    OutputBudget,
    RequireApproval,
    Retry,
    Supervise,
    Value,
)
from callboard.testing import ScriptedModel
from tests.engines._fake import FakeEngine
from tests.helpers import make_sync


@tool
async def fetch(url: str) -> str:
    """Fetch a page."""
    return url


@tool
async def search(query: str) -> str:
    """Search pages."""
    return query


async def look_up(word: str) -> str:
    """Look up a word."""
    return word


class Notes(Actor):
    """Actor that keeps notes."""

    @CallPolicy(timeout=4.0)
    @handler(idempotent=True)
    async def add(self, text: str) -> str:
        """Add a note."""
        return text


def by_host(call: Any) -> str:
    return str(call["args"]["url"])


def effects(node: ToolNode, name: str = "fetch") -> list[str]:
    return [link.effect for link in node.explain(name).middleware]


@given(st.permutations(["a", "b", "c", "d"]), st.booleans())
async def test_middleware_is_explained_in_the_order_of_a_call(names: list[str], has_wrapper: bool) -> None:
    """The order decides what a middleware sees: an explanation in another order would be worse than none."""
    passed: list[str] = []

    def middleware(name: str) -> Any:
        async def wrap(request: Any, call_next: Any) -> Any:
            passed.append(name)
            return await call_next(request)

        wrap.__qualname__ = name
        return wrap

    wrapper = middleware("wrapper") if has_wrapper else None
    node = ToolNode([fetch], middleware=[middleware(name) for name in names], awrap_tool_call=wrapper)
    await node.ainvoke([tool_call("fetch", url="x")])
    links = node.explain("fetch").middleware

    assert [link.name for link in links] == passed
    assert [link.source for link in links] == ["middleware"] * 4 + ["awrap_tool_call"] * has_wrapper


def test_the_policy_is_the_effective_one_with_its_source() -> None:
    """What a policy leaves out comes from the node; a reader of one policy cannot see that."""
    node = ToolNode(
        [fetch, search, Notes()], timeout=7.0, grace=3.0, policies={"fetch": CallPolicy(budget=9.0, on_unknown="ask")}
    )
    by_name, of_node, at_tool = (node.explain(name) for name in ("fetch", "search", "add"))

    assert by_name.policy == CallPolicy(timeout=7.0, budget=9.0, grace=3.0, idempotent=False, on_unknown="ask")
    assert of_node.policy == CallPolicy(timeout=7.0, grace=3.0, idempotent=False, on_unknown="fail")
    assert at_tool.policy == CallPolicy(timeout=4.0, grace=3.0, idempotent=True, on_unknown="fail")
    assert [explanation.policy_source for explanation in (by_name, of_node, at_tool)] == [
        "policies",
        "node",
        "decorator",
    ]


def test_limits_are_explained_in_the_order_in_which_an_attempt_waits_for_them() -> None:
    """A call that waits for its tool holds no permit of the node."""
    of_tool = Limit(concurrency=8, queue=100, rate=Rate(20, per=2.0), key=by_host)
    of_node = Limit(concurrency=64)
    node = ToolNode([fetch, search], limit=of_node, policies={"fetch": CallPolicy(limit=of_tool)})
    explanation = node.explain("fetch")

    assert list(explanation.limits.items()) == [("tool", of_tool), ("node", of_node)]
    assert "limit of the tool: 8 at once, 20 starts in 2 s, at most 100 waiting, for each key of by_host" in str(
        explanation
    )
    assert list(node.explain("search").limits) == ["node"]


def test_a_limit_of_the_tool_and_the_node_is_taken_once() -> None:
    limit = Limit(concurrency=3)
    explanation = ToolNode([fetch], limit=limit, policies={"fetch": CallPolicy(limit=limit)}).explain("fetch")

    assert "limit of the tool: 3 at once" in str(explanation)
    assert "limit of the node: the same limit, taken once" in str(explanation)


def test_each_middleware_states_its_effect_on_the_tool() -> None:
    """A middleware in the list may do nothing for this tool: then a reader looks elsewhere."""
    node = ToolNode(
        [fetch, search],
        middleware=[
            LoopGuard(),
            OutputBudget(1000, tools=["fetch"]),
            RepairArguments(),
            Sanitize(),
            RequireApproval(["fetch"]),
            Fallback({"fetch": ["search", Value("none")]}),
            Cache(["fetch"], ttl=60.0),
            CircuitBreaker(0.25, minimum=4, window=20.0, open_for=10.0),
            Retry(4),
            Redact(["card"], reveal={"fetch": ["url"]}),
        ],
        policies={"fetch": CallPolicy(idempotent=True)},
    )

    assert effects(node) == [
        "tells the model about repetition 15, refuses repetition 25, and raises LoopError at repetition 40",
        "shows at most 1,000 characters of a result; the model reads the rest with read_output",
        "repairs invalid arguments that have one correction",
        "checks arguments and cleans results",
        "asks a person before the call",
        "answers with search, then value after a failure",
        "reuses the result of an equal call for 60 s",
        "refuses calls for 10 s after 25% of at least 4 calls failed within 20 s",
        "makes up to 4 attempts",
        "replaces secrets by tokens, and gives the tool the values in url",
    ]
    assert effects(node, "search")[1] == "nothing, it does not shorten results of the tool"
    assert effects(node, "search")[4:7] == [
        "nothing, the tool needs no approval",
        "nothing, it has no alternative for the tool",
        "nothing, the tool is not in its list",
    ]
    assert effects(node, "search")[8:] == [
        "runs a call again only if its body never ran: its policy does not say idempotent=True",
        "replaces secrets by tokens",
    ]


def test_a_tool_whose_arguments_cannot_be_repaired_is_explained_as_such() -> None:
    """`RepairArguments` does not read models of pydantic v1."""

    class Query(BaseModelV1):
        text: str

    find = StructuredTool.from_function(lambda text: text, name="fetch", description="Find.", args_schema=Query)

    assert effects(ToolNode([find], middleware=[RepairArguments()])) == [
        "nothing, it cannot repair arguments of the tool"
    ]


def test_a_condition_of_an_approval_is_stated() -> None:
    node = ToolNode([fetch], middleware=[RequireApproval(when=lambda request: True)])

    assert effects(node) == ["asks a person before a call for which its predicate is true"]


def test_langchains_approval_is_explained_for_the_tools_that_it_names() -> None:
    approval = HumanInTheLoopMiddleware({"fetch": True}, interrupt_mode="per_call")  # type: ignore[call-arg]
    node = ToolNode([fetch, search], middleware=[approval])

    assert effects(node) == ["asks a person before the call"]
    assert effects(node, "search") == [""]


def test_places_of_bodies_are_explained() -> None:
    def wait() -> str:
        return ""

    node = ToolNode(
        [fetch, look_up, make_sync(wait), child(Notes, key=lambda call: call["args"]["text"])],
        policies={"look_up": CallPolicy(runs_in=FakeEngine())},
    )

    assert [node.explain(name).body for name in ("fetch", "look_up", "wait", "add")] == [
        "in the event loop",
        "on FakeEngine",
        "in a worker thread",
        "a handler of the actor 'Notes', one for each key",
    ]


def test_an_agent_explains_the_tools_of_its_node() -> None:
    agent = create_react_agent(ScriptedModel(["Done."]), ToolNode([fetch], middleware=[Sanitize()], timeout=2.0))

    assert agent.tools.explain("fetch").middleware == (
        ChainLink("Sanitize", "middleware", "checks arguments and cleans results"),
    )


def test_supervise_explains_a_tool_as_a_node_with_the_same_options() -> None:
    """The agent is LangChain's, and its node has LangChain's name."""
    options: Any = {
        "middleware": [Sanitize(), Retry(any_tool=True)],
        "timeout": 2.0,
        "limit": Limit(concurrency=64),
        "policies": {"fetch": CallPolicy(budget=30.0, limit=Limit(concurrency=8))},
    }
    supervise, node = Supervise(**options), ToolNode([fetch, look_up], **options)

    assert supervise.explain(fetch) == node.explain("fetch")
    assert supervise.explain(look_up) == node.explain("look_up")
    assert supervise.explain(fetch).policy_source == "policies"
    with pytest.raises(TypeError, match="give the tool itself instead of its name"):
        supervise.explain("fetch")  # type: ignore[arg-type]


def test_a_tool_that_the_node_does_not_have_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"there is no tool 'fecth', only .*; did you mean 'fetch'"):
        ToolNode([fetch, search]).explain("fecth")


def test_words_name_every_step_from_the_outside_inwards() -> None:
    policy = CallPolicy(timeout=2.0, idle_timeout=1.0, budget=30.0, idempotent=True)
    node = ToolNode([fetch], middleware=[Sanitize(results=None)], policies={"fetch": policy})

    assert str(node.explain("fetch")).splitlines() == [
        "A call of 'fetch' in the node 'tools' passes, from the outside inwards:",
        "1. budget: 30 s for the whole call",
        "2. Sanitize: checks arguments",
        "3. timeout: 2 s for each attempt",
        "4. idle timeout: 1 s without progress",
        "5. grace: 5 s for clean-up after a cancel",
        "6. body: in the event loop",
        "Policy from: policies. Unknown outcome: the call runs again, because the tool is idempotent.",
    ]
