"""create_react_agent: prompts, models, hooks, structured output, and refused arguments."""

from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from pydantic import BaseModel
from typing_extensions import TypedDict

from ._harness import ASYNC_MODES, DIRECT_MODES, Case, alike, call
from ._model import ReplayModel
from .conftest import Same

QUESTION = {"messages": [HumanMessage("q", id="h")]}
REPLIES = (AIMessage("", tool_calls=[call("double", {"x": 1}, "a")], id="ai-1"), AIMessage("done", id="ai-2"))


@tool
def double(x: int) -> int:
    """Double."""
    return 2 * x


@tool
def triple(x: int) -> int:
    """Triple."""
    return 3 * x


def build(ns: Any, model: Any, log: list[Any], tools: Any = (double,), input: Any = QUESTION, **options: Any) -> Case:
    made = ns.create_react_agent(model, list(tools), **options)
    return Case(made, input, own_runtime=True, log=log)


def agent(ns: Any, **options: Any) -> Case:
    log: list[Any] = []
    return build(ns, ReplayModel(*REPLIES, log=log), log, **options)


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
        return build(ns, ReplayModel(*REPLIES, log=log).bind_tools(tools), log, given, **options)

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
    return build(ns, ReplayModel(*REPLIES, log=log).with_config(tags=["x"]), log)


def test_a_tool_of_the_provider_is_bound_beside_the_others(same_direct: Same) -> None:
    search = {"type": "web_search", "name": "search"}
    same_direct(lambda ns: agent(ns, tools=[double, search]))


@alike(modes=DIRECT_MODES)
def test_a_model_is_chosen_for_each_turn(ns: Any) -> Case:
    log: list[Any] = []
    model = ReplayModel(*REPLIES, log=log)

    def choose(state: Any, runtime: Any) -> Any:
        log.append(("choose", len(state["messages"]), type(runtime).__name__))
        return model.bind_tools([double])

    return build(ns, choose, log)


@alike(modes=ASYNC_MODES)
def test_a_model_is_chosen_by_a_coroutine_function(ns: Any) -> Case:
    log: list[Any] = []
    model = ReplayModel(*REPLIES, log=log)

    async def choose(state: Any, runtime: Any) -> Any:
        return model.bind_tools([double])

    return build(ns, choose, log)


class Answer(BaseModel):
    """The answer."""

    number: int


STRUCTURED = (*REPLIES, AIMessage("", tool_calls=[call("Answer", {"number": 2}, "s")], id="ai-3"))


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

    replies = REPLIES if tools else REPLIES[1:]
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
