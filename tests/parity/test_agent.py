"""create_react_agent: its loop, guards and streams; prompts, models, hooks, structured output, refused arguments."""

import asyncio
from typing import Annotated, Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from pydantic import BaseModel
from typing_extensions import TypedDict

from ._dump import dump
from ._harness import ASYNC_MODES, DIRECT_MODES, QUESTION, Case, alike, call, double, versions
from ._model import ReplayModel
from ._prebuilt import candidate, reference
from .conftest import Same


@tool(return_direct=True)
def final(x: int) -> str:
    """The last word."""
    return f"final {x}"


@tool
def fails(x: int) -> str:
    """Fail."""
    raise ValueError("bad")


def ai(*calls: dict[str, Any], text: str = "", id: str = "ai") -> AIMessage:
    return AIMessage(text, tool_calls=list(calls), id=id)


def turn(n: int, *calls: dict[str, Any]) -> AIMessage:
    return ai(*calls, id=f"ai-{n}")


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
    made = ns.create_react_agent(model, list(tools), **options)
    return Case(made, input, config=config or {}, own_runtime=True, log=log)


def agent(ns: Any, replies: Any = ONE, tools: Any = (double,), **options: Any) -> Case:
    log: list[Any] = []
    return build(ns, ReplayModel(*replies, log=log), log, tools, **options)


@versions
@pytest.mark.parametrize(
    "replies", [("done",), ONE, TWO_AT_ONCE, TWO_TURNS], ids=["no call", "one call", "two calls", "two turns"]
)
def test_the_loop_runs_until_the_model_is_done(replies: Any, version: str, same_direct: Same) -> None:
    same_direct(lambda ns: agent(ns, replies, version=version))


@versions
def test_unknown_tools_and_wrong_arguments_are_told_to_the_model(version: str, same_direct: Same) -> None:
    wrong = (turn(1, call("nope", {}, "a"), call("double", {"x": "no"}, "b")), "sorry")
    same_direct(lambda ns: agent(ns, wrong, version=version))


@versions
def test_an_error_of_a_tool_is_raised(version: str, same_direct: Same) -> None:
    failing = (turn(1, call("fails", {"x": 1}, "a")), "done")
    same_direct(lambda ns: agent(ns, failing, [fails], version=version), raises="ValueError")


@versions
@alike(modes=DIRECT_MODES)
def test_a_tool_node_is_taken_with_its_own_error_handling(ns: Any, version: str) -> Case:
    log: list[Any] = []
    model = ReplayModel(turn(1, call("fails", {"x": 1}, "a")), "done", log=log)
    node = ns.ToolNode([fails, double], handle_tool_errors="own text")
    return Case(ns.create_react_agent(model, node, version=version), QUESTION, own_runtime=True, log=log)


def test_without_tools_the_model_is_asked_once_and_unbound(same_direct: Same) -> None:
    same_direct(lambda ns: agent(ns, ("done",), []))


def test_without_tools_a_call_of_the_model_stays_unanswered(same_direct: Same) -> None:
    same_direct(lambda ns: agent(ns, ONE, []))


@versions
@pytest.mark.parametrize(
    "calls",
    [
        [call("final", {"x": 1}, "a")],
        [call("final", {"x": 1}, "a"), call("double", {"x": 2}, "b")],
        [call("double", {"x": 2}, "b"), call("final", {"x": 1}, "a")],
        [call("double", {"x": 2}, "b")],
        [call("final", {"x": "no"}, "a")],
    ],
    ids=["alone", "first", "last", "not called", "wrong arguments"],
)
def test_a_return_direct_tool_ends_the_run(calls: Any, version: str, same_direct: Same) -> None:
    same_direct(lambda ns: agent(ns, (turn(1, *calls), "done"), [double, final], version=version))


@versions
@pytest.mark.parametrize("limit", [2, 4, 6, 10])
def test_an_even_recursion_limit_makes_it_apologise(limit: int, version: str, same_direct: Same) -> None:
    config = {"recursion_limit": limit}
    seen = same_direct(lambda ns: agent(ns, FOREVER, version=version, config=config))

    assert "Sorry, need more steps to process this request." in str(seen)


@versions
@pytest.mark.parametrize("limit", [1, 3, 5])
def test_an_odd_recursion_limit_is_an_error(limit: int, version: str, same_direct: Same) -> None:
    config = {"recursion_limit": limit}
    same_direct(lambda ns: agent(ns, FOREVER, version=version, config=config), raises="GraphRecursionError")


def test_a_recursion_limit_in_the_middle_of_the_loop_is_an_error(same_direct: Same) -> None:
    class State(reference().AgentState):  # type: ignore[misc]
        remaining_steps: int

    config = {"recursion_limit": 5}
    payload = {**QUESTION, "remaining_steps": 100}
    same_direct(
        lambda ns: agent(ns, FOREVER, state_schema=State, config=config, input=payload), raises="GraphRecursionError"
    )


def test_a_return_direct_tool_runs_where_another_would_not(same_direct: Same) -> None:
    replies = (turn(1, call("final", {"x": 1}, "a")), "done")
    same_direct(lambda ns: agent(ns, replies, [final], config={"recursion_limit": 2}))
    same_direct(lambda ns: agent(ns, replies, [final], config={"recursion_limit": 3}))


@pytest.mark.parametrize("limit", [0, -1])
def test_a_recursion_limit_below_one_is_refused(limit: int, same_direct: Same) -> None:
    same_direct(lambda ns: agent(ns, ONE, config={"recursion_limit": limit}), raises="ValueError")


def test_the_name_of_the_agent_stands_on_its_messages(same_direct: Same) -> None:
    same_direct(lambda ns: agent(ns, ONE, name="helper"))


def test_the_name_of_the_agent_is_its_own() -> None:
    names = [agent(ns, ONE, name="helper").node.name for ns in (reference(), candidate())]

    assert names == ["helper", "helper"]


@pytest.mark.parametrize(
    "messages",
    ["a text", [("user", "a pair")], [{"role": "user", "content": "a dict"}], HumanMessage("alone")],
    ids=["text", "pairs", "dicts", "message"],
)
def test_messages_are_accepted_in_every_form(messages: Any, same_direct: Same) -> None:
    same_direct(lambda ns: agent(ns, ("done",), input={"messages": messages}))


def test_a_history_with_answers_is_continued(same_direct: Same) -> None:
    history = [HumanMessage("q", id="h"), ONE[0], ToolMessage("2", tool_call_id="a", id="t", name="double")]
    same_direct(lambda ns: agent(ns, ("done",), input={"messages": history}))


@versions
@alike(modes=DIRECT_MODES)
def test_a_command_of_a_tool_updates_the_state(ns: Any, version: str) -> Case:
    class State(ns.AgentState):  # type: ignore[misc]
        mood: str

    @tool
    def cheer(tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Cheer."""
        return Command(update={"mood": "good", "messages": [ToolMessage("ok", tool_call_id=tool_call_id, id="t")]})

    @tool
    def ask(mood: Annotated[str, ns.InjectedState("mood")]) -> str:
        """Ask."""
        return mood

    replies = (turn(1, call("cheer", {}, "a")), turn(2, call("ask", {}, "b")), "done")
    return agent(ns, replies, [cheer, ask], state_schema=State, version=version, input={**QUESTION, "mood": "bad"})


@versions
@alike(modes=DIRECT_MODES)
def test_the_store_reaches_the_tools(ns: Any, version: str) -> Case:
    @tool
    def keep(key: str, store: Annotated[Any, ns.InjectedStore()]) -> str:
        """Keep."""
        store.put(("k",), key, {"v": 1})
        return str(len(store.search(("k",))))

    replies = (turn(1, call("keep", {"key": "a"}, "a")), "done")
    return agent(ns, replies, [keep], store=InMemoryStore(), version=version)


@versions
def test_a_checkpointer_remembers_the_conversation(version: str) -> None:
    def talk(ns: Any) -> Any:
        log: list[Any] = []
        model = ReplayModel(*ONE, AIMessage("again", id="ai-3"), log=log)
        made = ns.create_react_agent(model, [double], checkpointer=InMemorySaver(), version=version)
        config = {"configurable": {"thread_id": "1"}}
        made.invoke(QUESTION, config)
        made.invoke({"messages": [HumanMessage("more", id="h2")]}, config)
        state = made.get_state(config)
        return dump([log, state.values, state.next])

    assert talk(candidate()) == talk(reference())


@versions
@pytest.mark.parametrize("mode", ["updates", "values"])
@pytest.mark.parametrize("replies", [("done",), ONE, TWO_TURNS], ids=["no call", "one call", "two turns"])
def test_the_stream_has_the_same_chunks(replies: Any, mode: str, version: str) -> None:
    async def collect(ns: Any) -> Any:
        case = agent(ns, replies, version=version)
        return dump([chunk async for chunk in case.node.astream(case.input, stream_mode=mode)])

    def collect_sync(ns: Any) -> Any:
        case = agent(ns, replies, version=version)
        return dump(list(case.node.stream(case.input, stream_mode=mode)))

    assert asyncio.run(collect(candidate())) == asyncio.run(collect(reference()))
    assert collect_sync(candidate()) == collect_sync(reference())


@pytest.mark.parametrize("when", ["interrupt_before", "interrupt_after"])
@pytest.mark.parametrize("node", ["agent", "tools"])
def test_it_stops_at_a_named_node_and_goes_on(node: str, when: str) -> None:
    def pause(ns: Any) -> Any:
        made = ns.create_react_agent(ReplayModel(*ONE), [double], checkpointer=InMemorySaver(), **{when: [node]})
        config = {"configurable": {"thread_id": "1"}}
        seen = [made.invoke(QUESTION, config)]
        while (state := made.get_state(config)).next and len(seen) < 6:
            seen.append([state.next, made.invoke(None, config)])
        return dump(seen)

    assert pause(candidate()) == pause(reference())


# Prompts, models, hooks and structured output


@tool
def triple(x: int) -> int:
    """Triple."""
    return 3 * x


def by_function(state: Any) -> Any:
    return [SystemMessage(f"function, {len(state['messages'])} so far"), *state["messages"]]


async def by_coroutine(state: Any) -> Any:
    return by_function(state)


def by_text(state: Any) -> str:
    return f"a text after {len(state['messages'])}"


PROMPTS: dict[str, Any] = {
    "none": None,
    "a text": "be brief",
    "an empty text": "",
    "a system message": SystemMessage("be brief", name="boss"),
    "a function": by_function,
    "a function that gives text": by_text,
    "a runnable": RunnableLambda(by_function),
    "a template": ChatPromptTemplate.from_messages([("system", "be brief"), ("placeholder", "{messages}")]),
}


@pytest.mark.parametrize("label", PROMPTS)
def test_the_model_sees_the_prompt_of(label: str, same_direct: Same) -> None:
    same_direct(lambda ns: agent(ns, prompt=PROMPTS[label]))


def test_the_model_sees_the_prompt_of_a_coroutine_function(same_async: Same) -> None:
    same_async(lambda ns: agent(ns, prompt=by_coroutine))


@alike(modes=DIRECT_MODES)
def test_a_function_prompt_reads_a_state_of_the_users_own(ns: Any) -> Case:
    class State(ns.AgentState):  # type: ignore[misc]
        user: str

    def greet(state: Any) -> Any:
        return [SystemMessage(f"for {state['user']}"), *state["messages"]]

    return agent(ns, prompt=greet, state_schema=State, input={**QUESTION, "user": "ann"})


@alike(modes=DIRECT_MODES)
def test_a_pydantic_state_is_carried(ns: Any) -> Case:
    class State(ns.AgentStatePydantic):  # type: ignore[misc]
        user: str = "nobody"

    def greet(state: Any) -> Any:
        return [SystemMessage(f"for {state.user}"), *state.messages]

    return agent(ns, prompt=greet, state_schema=State, input={**QUESTION, "user": "ann"})


@pytest.mark.parametrize("prompt", [7, [SystemMessage("x")]], ids=["int", "list"])
def test_a_prompt_of_another_type_is_refused(prompt: Any, same_direct: Same) -> None:
    same_direct(lambda ns: agent(ns, prompt=prompt), raises="ValueError")


def bound(*tools: Any) -> Any:
    def make(ns: Any, given: Any, **options: Any) -> Case:
        log: list[Any] = []
        return build(ns, ReplayModel(*ONE, log=log).bind_tools(tools), log, given, **options)

    return make


def test_a_model_with_the_same_tools_bound_is_taken_as_it_is(same_direct: Same) -> None:
    same_direct(lambda ns: bound(double)(ns, [double]))


@pytest.mark.parametrize(
    ("has", "given"),
    [([double], [triple]), ([double], [double, triple]), ([double, triple], [double]), ([double, triple], [])],
    ids=["another", "fewer bound", "more bound", "none given"],
)
def test_a_model_with_other_tools_bound_is_refused(has: Any, given: Any, same_direct: Same) -> None:
    same_direct(lambda ns: bound(*has)(ns, given), raises="ValueError")


@alike(modes=DIRECT_MODES)
def test_a_model_bound_to_something_else_is_bound_to_the_tools(ns: Any) -> Case:
    log: list[Any] = []
    return build(ns, ReplayModel(*ONE, log=log).with_config(tags=["x"]), log)


def test_a_tool_of_the_provider_is_bound_beside_the_others(same_direct: Same) -> None:
    search = {"type": "web_search", "name": "search"}
    same_direct(lambda ns: agent(ns, tools=[double, search]))


@alike(modes=DIRECT_MODES)
def test_a_model_is_chosen_for_each_turn(ns: Any) -> Case:
    log: list[Any] = []
    model = ReplayModel(*ONE, log=log)

    def choose(state: Any, runtime: Any) -> Any:
        log.append(("choose", len(state["messages"]), type(runtime).__name__))
        return model.bind_tools([double])

    return build(ns, choose, log)


@alike(modes=ASYNC_MODES)
def test_a_model_is_chosen_by_a_coroutine_function(ns: Any) -> Case:
    log: list[Any] = []
    model = ReplayModel(*ONE, log=log)

    async def choose(state: Any, runtime: Any) -> Any:
        return model.bind_tools([double])

    return build(ns, choose, log)


class Answer(BaseModel):
    """The answer."""

    number: int


STRUCTURED = (*ONE, AIMessage("", tool_calls=[call("Answer", {"number": 2}, "s")], id="ai-3"))


@pytest.mark.parametrize("response_format", [Answer, ("give a number", Answer)], ids=["schema", "prompt and schema"])
@alike(modes=DIRECT_MODES)
def test_a_structured_response_is_the_last_step(ns: Any, response_format: Any) -> Case:
    log: list[Any] = []
    return build(ns, ReplayModel(*STRUCTURED, log=log), log, response_format=response_format)


@alike(modes=DIRECT_MODES)
def test_a_structured_response_needs_no_tools(ns: Any) -> Case:
    log: list[Any] = []
    return build(ns, ReplayModel(*STRUCTURED[1:], log=log), log, [], response_format=Answer)


def rewrites(state: Any) -> Any:
    return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), HumanMessage("rewritten", id="r")]}


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_pre_model_hook_changes_what_the_model_sees(version: str, same_direct: Same) -> None:
    def last_two(state: Any) -> Any:
        return {"llm_input_messages": state["messages"][-2:]}

    same_direct(lambda ns: agent(ns, pre_model_hook=last_two, version=version))


@alike(modes=DIRECT_MODES)
def test_a_pre_model_hook_changes_the_history(ns: Any) -> Case:
    log: list[Any] = []
    return build(ns, ReplayModel("done", log=log), log, pre_model_hook=rewrites)


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


REFUSED: dict[str, dict[str, Any]] = {
    "an unknown version": {"version": "v3"},
    "a state without steps": {"state_schema": NoSteps},
}


@pytest.mark.parametrize("label", REFUSED)
def test_construction_refuses(label: str, same_direct: Same) -> None:
    same_direct(lambda ns: agent(ns, **REFUSED[label]), raises="ValueError")


@alike(modes=DIRECT_MODES, raises="ValueError")
def test_construction_refuses_a_state_without_the_response(ns: Any) -> Case:
    return agent(ns, state_schema=ns.AgentState, response_format=Answer)


def test_an_unknown_keyword_is_a_type_error(same_direct: Same) -> None:
    same_direct(lambda ns: agent(ns, nonsense=1), raises="TypeError")


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


@pytest.mark.parametrize("version", ["v1", "v2"])
@alike(modes=DIRECT_MODES)
def test_callbacks_hear_the_loop_in_order(ns: Any, version: str) -> Case:
    case = agent(ns, version=version)
    case.config["callbacks"] = [Loop(case.log)]
    return case
