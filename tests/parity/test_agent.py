"""create_react_agent: its loop, guards and streams; prompts, models, hooks, structured output, refused arguments."""

from typing import Annotated, Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import InjectedState, InjectedStore
from langgraph.store.memory import InMemoryStore
from typing_extensions import TypedDict

from callboard import AgentState, AgentStatePydantic

from ._dump import dump
from ._harness import (
    ASYNC_MODES,
    DIRECT_MODES,
    QUESTION,
    Case,
    alike,
    assert_same,
    call,
    cheer,
    double,
    fails,
    final,
    table_test,
    turn,
    versions,
)
from ._model import Answer, ReplayModel
from ._prebuilt import candidate, reference

ONE = (turn(1, call("double", {"x": 1}, "a")), AIMessage("done", id="ai-2"))
TWO_AT_ONCE = (turn(1, call("double", {"x": 1}, "a"), call("double", {"x": 2}, "b")), AIMessage("done", id="ai-2"))
TWO_TURNS = (
    turn(1, call("double", {"x": 1}, "a")),
    turn(2, call("double", {"x": 2}, "b")),
    AIMessage("done", id="ai-3"),
)
FOREVER = tuple(turn(n, call("double", {"x": n}, f"c{n}")) for n in range(60))


def build(
    ns: Any,
    model: Any,
    log: list[Any],
    tools: Any = (double,),
    *,
    input: Any = QUESTION,
    config: Any = None,
    **options: Any,
) -> Case:
    built_agent = ns.create_react_agent(model, list(tools) if isinstance(tools, (list, tuple)) else tools, **options)
    return Case(built_agent, input, config=config or {}, own_runtime=True, log=log)


def agent(ns: Any, replies: Any = ONE, tools: Any = (double,), **options: Any) -> Case:
    log: list[Any] = []
    return build(ns, ReplayModel(*replies, log=log), log, tools, **options)


class Loop(BaseCallbackHandler):
    """Records the start and the end of the model and of tools."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self.log.append(("model starts", [message.content for message in messages[0]]))

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        self.log.append(("model ends", response.generations[0][0].message.content))

    def on_tool_start(self, serialized: Any, input_str: str, **kwargs: Any) -> None:
        self.log.append(("tool starts", serialized["name"], input_str, kwargs.get("tool_call_id")))

    def on_tool_end(self, output: Any, **kwargs: Any) -> None:
        self.log.append(("tool ends", output))


def of_agent(*arguments: Any, **options: Any) -> Any:
    """Return a scenario of an agent with these arguments; the version may follow later."""
    return lambda ns, **later_options: agent(ns, *arguments, **options, **later_options)


class Moody(AgentState):
    mood: str


@tool
def feel(mood: Annotated[str, InjectedState("mood")]) -> str:
    """Feel."""
    return mood


@tool
def keep(key: str, store: Annotated[Any, InjectedStore()]) -> str:
    """Keep."""
    store.put(("k",), key, {"v": 1})
    return str(len(store.search(("k",))))


def with_a_node(ns: Any, version: str) -> Case:
    node = ns.ToolNode([fails, double], handle_tool_errors="own text")
    return agent(ns, (turn(1, call("fails", {"x": 1}, "a")), "done"), node, version=version)


def with_callbacks(ns: Any, version: str) -> Case:
    case = agent(ns, version=version)
    case.config["callbacks"] = [Loop(case.log)]
    return case


def last_two(state: Any) -> Any:
    return {"llm_input_messages": state["messages"][-2:]}


def first_alone(state: Any) -> Any:
    """Return messages for the model before the first request only: they count for the later ones, too."""
    return {"llm_input_messages": state["messages"][:1]} if len(state["messages"]) == 1 else {}


LAST_WORDS = {
    "alone": [call("final", {"x": 1}, "a")],
    "first": [call("final", {"x": 1}, "a"), call("double", {"x": 2}, "b")],
    "last": [call("double", {"x": 2}, "b"), call("final", {"x": 1}, "a")],
    "not called": [call("double", {"x": 2}, "b")],
    "wrong arguments": [call("final", {"x": "no"}, "a")],
}
IN_BOTH_VERSIONS: dict[str, Any] = {
    "no call": of_agent(("done",)),
    "one call": of_agent(ONE),
    "two calls": of_agent(TWO_AT_ONCE),
    "two turns": of_agent(TWO_TURNS),
    "an unknown tool and wrong arguments": of_agent(
        (turn(1, call("nope", {}, "a"), call("double", {"x": "no"}, "b")), "sorry")
    ),
    "an error of a tool": (of_agent((turn(1, call("fails", {"x": 1}, "a")), "done"), [fails]), "ValueError"),
    "a node with its own error handling": with_a_node,
    **{
        f"a return-direct tool, {label}": of_agent((turn(1, *calls), "done"), [double, final])
        for label, calls in LAST_WORDS.items()
    },
    **{
        f"a recursion limit of {limit}": (of_agent(FOREVER, config={"recursion_limit": limit}), "GraphRecursionError")
        for limit in (1, 3, 5)
    },
    "a command of a tool": of_agent(
        (turn(1, call("cheer", {}, "a")), turn(2, call("feel", {}, "b")), "done"),
        [cheer, feel],
        state_schema=Moody,
        input={**QUESTION, "mood": "bad"},
    ),
    "a store": lambda ns, version: agent(
        ns, (turn(1, call("keep", {"key": "a"}, "a")), "done"), [keep], store=InMemoryStore(), version=version
    ),
    "a hook that changes what the model sees": of_agent(pre_model_hook=last_two),
    "a hook that changes what the model sees, once for two requests": of_agent(ONE, pre_model_hook=first_alone),
    "callbacks": with_callbacks,
}
test_an_agent_of_both_versions_is_the_same_with = table_test(IN_BOTH_VERSIONS, modes=DIRECT_MODES, by_version=True)


@versions
@pytest.mark.parametrize("mode", DIRECT_MODES)
@pytest.mark.parametrize("limit", [2, 4, 6, 10])
def test_an_even_recursion_limit_makes_it_apologise(limit: int, mode: str, version: str) -> None:
    outcome = assert_same(of_agent(FOREVER, version=version, config={"recursion_limit": limit}), mode)
    assert "Sorry, need more steps to process this request." in str(outcome)


class Steps(reference().AgentState):  # type: ignore[misc]
    remaining_steps: int


HISTORY = [HumanMessage("q", id="h"), ONE[0], ToolMessage("2", tool_call_id="a", id="t", name="double")]
FORMS: dict[str, Any] = {
    "a text": "a text",
    "pairs": [("user", "a pair")],
    "dicts": [{"role": "user", "content": "a dict"}],
    "one message": HumanMessage("alone"),
    "a history with answers": HISTORY,
}
LAST = (turn(1, call("final", {"x": 1}, "a")), "done")
WITHOUT_MORE: dict[str, Any] = {
    "no tools": of_agent(("done",), []),
    "no tools and a call of the model": of_agent(ONE, []),
    "a recursion limit in the middle of the loop": (
        of_agent(
            FOREVER, state_schema=Steps, config={"recursion_limit": 5}, input={**QUESTION, "remaining_steps": 100}
        ),
        "GraphRecursionError",
    ),
    "a return-direct tool in the last step": of_agent(LAST, [final], config={"recursion_limit": 2}),
    "a return-direct tool in the step before": of_agent(LAST, [final], config={"recursion_limit": 3}),
    "a recursion limit of 0": (of_agent(ONE, config={"recursion_limit": 0}), "ValueError"),
    "a recursion limit of -1": (of_agent(ONE, config={"recursion_limit": -1}), "ValueError"),
    "a name, which stands on its messages": of_agent(ONE, name="helper"),
    **{f"messages as {label}": of_agent(("done",), input={"messages": form}) for label, form in FORMS.items()},
}
test_an_agent_is_the_same_with = table_test(WITHOUT_MORE, modes=DIRECT_MODES)


def test_the_name_of_the_agent_is_its_own() -> None:
    names = [agent(ns, ONE, name="helper").node.name for ns in (reference(), candidate())]
    assert names == ["helper", "helper"]


@versions
@pytest.mark.parametrize("mode", ["updates", "values"])
@pytest.mark.parametrize("replies", [("done",), ONE, TWO_TURNS], ids=["no call", "one call", "two turns"])
def test_the_sync_stream_has_the_same_chunks(replies: Any, mode: str, version: str) -> None:
    """`test_agent_streams.py` compares async streams."""

    def collect(ns: Any) -> Any:
        case = agent(ns, replies, version=version)
        return dump(list(case.node.stream(case.input, stream_mode=mode)))

    assert collect(candidate()) == collect(reference())


@tool
def triple(x: int) -> int:
    """Triple."""
    return 3 * x


def by_function(state: Any) -> Any:
    return [SystemMessage(f"function, {len(state['messages'])} so far"), *state["messages"]]


async def by_coroutine(state: Any) -> Any:
    return by_function(state)


class Named(AgentState):
    user: str


class NamedPydantic(AgentStatePydantic):
    user: str = "nobody"


NAMED = {**QUESTION, "user": "ann"}


def greet(state: Any) -> Any:
    state = state if isinstance(state, dict) else vars(state)
    return [SystemMessage(f"for {state['user']}"), *state["messages"]]


PROMPTS: dict[str, Any] = {
    "none": None,
    "a text": "be brief",
    "an empty text": "",
    "a system message": SystemMessage("be brief", name="boss"),
    "a function": by_function,
    "a function that gives text": lambda state: f"a text after {len(state['messages'])}",
    "a runnable": RunnableLambda(by_function),
    "a template": ChatPromptTemplate.from_messages([("system", "be brief"), ("placeholder", "{messages}")]),
}


def with_bound_tools(has: Any, tools: Any) -> Any:
    def make(ns: Any) -> Case:
        log: list[Any] = []
        return build(ns, ReplayModel(*ONE, log=log).bind_tools(has), log, tools)

    return make


def with_tags(ns: Any) -> Case:
    log: list[Any] = []
    return build(ns, ReplayModel(*ONE, log=log).with_config(tags=["x"]), log)


def chosen(ns: Any) -> Case:
    log: list[Any] = []
    model = ReplayModel(*ONE, log=log)

    def choose(state: Any, runtime: Any) -> Any:
        log.append(("choose", len(state["messages"]), type(runtime).__name__))
        return model.bind_tools([double])

    return build(ns, choose, log)


def chosen_async(ns: Any) -> Case:
    log: list[Any] = []
    model = ReplayModel(*ONE, log=log)

    async def choose(state: Any, runtime: Any) -> Any:
        return model.bind_tools([double])

    return build(ns, choose, log)


STRUCTURED = (*ONE, AIMessage("", tool_calls=[call("Answer", {"number": 2}, "s")], id="ai-3"))


def rewrites(state: Any) -> Any:
    return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), HumanMessage("rewritten", id="r")]}


@pytest.mark.parametrize("tools", [[double], []], ids=["with tools", "without tools"])
@alike(modes=DIRECT_MODES)
def test_a_post_model_hook_runs_after_each_answer(ns: Any, tools: Any) -> Case:
    log: list[Any] = []

    def note(state: Any) -> Any:
        log.append(("hook", len(state["messages"])))
        return {}

    replies = ONE if tools else ONE[1:]
    return build(ns, ReplayModel(*replies, log=log), log, tools, post_model_hook=note)


class NoSteps(TypedDict):
    messages: list[Any]


PARTS: dict[str, Any] = {
    **{f"a prompt: {label}": of_agent(prompt=prompt) for label, prompt in PROMPTS.items()},
    "a prompt that reads a state of the user's": of_agent(prompt=greet, state_schema=Named, input=NAMED),
    "a pydantic state": of_agent(prompt=greet, state_schema=NamedPydantic, input=NAMED),
    "a model with the same tools bound": with_bound_tools([double], [double]),
    "a model bound to something else": with_tags,
    "a tool of the provider": of_agent(tools=[double, {"type": "web_search", "name": "search"}]),
    "a model that is chosen for each turn": chosen,
    "a structured response": of_agent(STRUCTURED, response_format=Answer),
    "a structured response with a prompt": of_agent(STRUCTURED, response_format=("give a number", Answer)),
    "a structured response without tools": of_agent(STRUCTURED[1:], [], response_format=Answer),
    "a pre-model hook that changes the history": of_agent(("done",), pre_model_hook=rewrites),
}
test_an_agent_has_the_same = table_test(PARTS, modes=DIRECT_MODES)

AWAITED: dict[str, Any] = {
    "a prompt of a coroutine function": of_agent(prompt=by_coroutine),
    "a model of a coroutine function": chosen_async,
}
test_an_agent_in_async_code_has_the_same = table_test(AWAITED, modes=ASYNC_MODES)

REFUSED: dict[str, Any] = {
    "a prompt that is a number": (of_agent(prompt=7), "ValueError"),
    "a prompt that is a list": (of_agent(prompt=[SystemMessage("x")]), "ValueError"),
    "a model with another tool bound": (with_bound_tools([double], [triple]), "ValueError"),
    "a model with fewer tools bound": (with_bound_tools([double], [double, triple]), "ValueError"),
    "a model with more tools bound": (with_bound_tools([double, triple], [double]), "ValueError"),
    "a model with tools bound and none given": (with_bound_tools([double, triple], []), "ValueError"),
    "an unknown version": (of_agent(version="v3"), "ValueError"),
    "a state without steps": (of_agent(state_schema=NoSteps), "ValueError"),
    "a state without the response": (of_agent(state_schema=AgentState, response_format=Answer), "ValueError"),
    "an unknown keyword": (of_agent(nonsense=1), "TypeError"),
}
test_an_agent_refuses = table_test(REFUSED, modes=DIRECT_MODES)
