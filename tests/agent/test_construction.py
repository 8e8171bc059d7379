"""Construction: every parameter of `create_react_agent`, in each of its forms, on every loop."""

import dataclasses
import operator
import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import anyio
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AnyMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import InjectedToolCallId
from langgraph.graph.message import add_messages
from langgraph.managed import RemainingSteps
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from langgraph.warnings import LangGraphDeprecatedSinceV10
from pydantic import BaseModel
from typing_extensions import TypedDict

from callboard import InjectedState, ToolNode, ToolRuntime, create_react_agent
from callboard.testing import Recorder, ScriptedModel, calls

from ._savers import QUESTION, run, shape

# On trio the model runs on the background loop, in another thread, for which a virtual clock does not wait.
pytestmark = pytest.mark.real_clock

WAIT = 10


def script() -> ScriptedModel:
    return ScriptedModel([calls("work"), "done"])


def work(name: str = "work") -> Any:
    return Recorder().tool(name)


DONE = ["human:go", "ai:", "tool:work", "ai:done"]


class Listening(BaseCallbackHandler):
    """Handler that keeps the tags of each request to a model."""

    def __init__(self) -> None:
        self.tags: list[Any] = []

    def on_chat_model_start(self, *_: Any, tags: list[str] | None = None, **__: Any) -> None:
        self.tags.append(tags)


async def test_a_model_with_bound_tools_keeps_the_config_that_is_bound_to_it() -> None:
    handler = Listening()
    model = script().bind_tools([work()])
    configured = model.with_config(tags=["mine"], callbacks=[handler])
    assert shape(await run(create_react_agent(configured, [work()]))) == DONE
    assert handler.tags == [["mine"], ["mine"]]


def test_agents_of_one_kind_are_drawn_with_their_own_tools() -> None:
    agents: list[Any] = [create_react_agent(script(), [work(name)]) for name in ("one", "two")]

    drawn = [list(agent.builder.nodes["tools"].runnable.tools_by_name) for agent in agents]
    assert drawn == [["one"], ["two"]]


async def test_a_sequence_that_ends_in_a_bound_model_is_taken_as_it_is() -> None:
    model, tool = script(), work()
    prefix = RunnableLambda(lambda messages: [SystemMessage("brief"), *messages])
    assert shape(await run(create_react_agent(prefix | model.bind_tools([tool]), [tool]))) == DONE
    assert [shape(request)[0] for request in model.requests] == ["system:brief"] * 2
    assert model.requested_tools == [("work",)] * 2


def in_openai_form(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": name, "parameters": {}}}


def in_anthropic_form(name: str) -> dict[str, Any]:
    return {"name": name, "description": name, "input_schema": {}}


FORMS = pytest.mark.parametrize("form", [in_openai_form, in_anthropic_form])


@FORMS
async def test_a_model_that_has_the_tools_already_is_not_bound_again(form: Callable[[str], Any]) -> None:
    model, other_tool = script(), work("other")
    bound = model.bind(tools=[form("other"), form("work")])
    assert shape(await run(create_react_agent(bound, [work(), other_tool]))) == DONE
    assert model.requested_tools == [("other", "work")] * 2


async def test_tools_of_the_provider_alone_make_no_tools_node() -> None:
    """The agent has no tools of its own to run, so a reply ends the run."""
    model = ScriptedModel([calls("web_search")])
    agent = create_react_agent(model, [in_openai_form("web_search")])
    assert shape(await run(agent)) == ["human:go", "ai:"]
    assert model.requested_tools == [("web_search",)]
    assert "tools" not in agent.nodes


async def test_a_bound_model_counts_the_tools_of_the_provider() -> None:
    model, tool = script(), work()
    bound = model.bind(tools=[in_openai_form("work"), in_openai_form("web_search")])
    assert shape(await run(create_react_agent(bound, [tool, in_openai_form("web_search")]))) == DONE


@dataclasses.dataclass
class Tier:
    name: str


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_a_function_chooses_the_model_by_state_and_runtime(is_async: bool) -> None:
    tool, small, large = work(), script(), ScriptedModel(["done"])
    choices: list[tuple[int, str]] = []

    def choose(state: Any, runtime: Runtime[Tier]) -> Any:
        choices.append((len(state["messages"]), runtime.context.name))
        return (small if len(state["messages"]) == 1 else large).bind_tools([tool])

    async def choose_async(state: Any, runtime: Runtime[Tier]) -> Any:
        await anyio.lowlevel.checkpoint()
        return choose(state, runtime)

    agent = create_react_agent(choose_async if is_async else choose, [tool], context_schema=Tier)
    assert shape(await run(agent, context=Tier("gold"))) == DONE
    assert choices == [(1, "gold"), (3, "gold")]
    assert [len(small.requests), len(large.requests)] == [1, 1]


def by_everything(state: Any, config: RunnableConfig, *, store: BaseStore, runtime: Runtime[Tier]) -> Any:
    assert store.get(("users",), "1") is not None
    return [SystemMessage(f"{config['configurable']['user']} {runtime.context.name}"), *state["messages"]]


async def by_everything_async(state: Any, config: RunnableConfig, *, store: BaseStore, runtime: Runtime[Tier]) -> Any:
    return by_everything(state, config, store=store, runtime=runtime)


@pytest.mark.parametrize("prompt", [by_everything, by_everything_async])
async def test_prompts_and_hooks_get_the_parameters_that_they_declare(prompt: Any) -> None:
    store = InMemoryStore()
    store.put(("users",), "1", {"name": "Ann"})
    model, lookups = script(), []

    async def hook(state: Any, config: RunnableConfig, *, store: BaseStore) -> Any:
        lookups.append((config["configurable"]["user"], await store.aget(("users",), "1") is not None))
        return {}

    agent = create_react_agent(model, [work()], prompt=prompt, pre_model_hook=hook, store=store, context_schema=Tier)
    await run(agent, config={"configurable": {"user": "ann"}}, context=Tier("gold"))
    assert [shape(request)[0] for request in model.requests] == ["system:ann gold"] * 2
    assert lookups == [("ann", True)] * 2


class TypedState(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    remaining_steps: RemainingSteps
    seen: Annotated[list[str], operator.add]


class ModelState(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages]
    remaining_steps: RemainingSteps = 25
    seen: Annotated[list[str], operator.add] = []


@dataclasses.dataclass
class DataState:
    messages: Annotated[list[AnyMessage], add_messages]
    remaining_steps: RemainingSteps = 25
    seen: Annotated[list[str], operator.add] = dataclasses.field(default_factory=list)


def field(state: Any, name: str) -> Any:
    return state[name] if isinstance(state, dict) else getattr(state, name)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("schema", [TypedState, ModelState, DataState])
async def test_a_state_of_the_users_own_is_kept_by_its_reducers(schema: type[Any], version: Any) -> None:
    kinds: dict[str, type[Any]] = {}

    def note(part: str, state: Any) -> Any:
        kinds[part] = type(state)
        return {}

    def look(
        query: str, state: Annotated[Any, InjectedState], seen: Annotated[list[str], InjectedState("seen")],
        tool_call_id: Annotated[str, InjectedToolCallId],
    ) -> Command[Any]:  # fmt: skip
        """Look."""
        note("tool", state)
        return Command(update={"seen": [query], "messages": [ToolMessage(f"{seen}", tool_call_id=tool_call_id)]})

    def prompt(state: Any) -> Any:
        note("prompt", state)
        return field(state, "messages")

    hooks: dict[str, Any] = {f"{name}_model_hook": partial(note, name) for name in ("pre", "post")}
    model = ScriptedModel([calls(("look", {"query": "a"}), ("look", {"query": "b"})), "done"])
    agent = create_react_agent(model, [look], prompt=prompt, state_schema=schema, version=version, **hooks)
    result = await run(agent, {**QUESTION, "seen": ["start"]})
    assert result["seen"] == ["start", "a", "b"]
    assert shape(result) == ["human:go", "ai:", "tool:['start']", "tool:['start']", "ai:done"]
    assert set(kinds) == {"tool", "prompt", "pre", "post"}
    assert all(issubclass(kind, dict if schema is TypedState else schema) for kind in kinds.values())


class TypedTier(TypedDict):
    name: str


class ModelTier(BaseModel):
    name: str


def name_of(context: Any) -> str:
    return str(field(context, "name"))


@pytest.mark.parametrize("schema", [Tier, TypedTier, ModelTier])
@pytest.mark.parametrize("as_dict", [False, True], ids=["instance", "dict"])
async def test_the_context_reaches_tools_prompts_and_hooks(schema: type[Any], as_dict: bool) -> None:
    contexts: list[Any] = []

    def look(runtime: ToolRuntime) -> str:
        """Look."""
        contexts.append(runtime.context)
        return "looked"

    def prompt(state: Any, runtime: Runtime[Any]) -> Any:
        contexts.append(runtime.context)
        return state["messages"]

    def hook(state: Any, runtime: Runtime[Any]) -> Any:
        contexts.append(runtime.context)
        return {}

    model = ScriptedModel([calls("look"), "done"])
    agent = create_react_agent(
        model, [look], prompt=prompt, pre_model_hook=hook, post_model_hook=hook, context_schema=schema
    )
    await run(agent, context={"name": "gold"} if as_dict else schema(name="gold"))
    assert len(contexts) == 7
    assert {name_of(context) for context in contexts} == {"gold"}
    assert all(isinstance(context, dict if schema is TypedTier else schema) for context in contexts)


async def test_a_context_that_does_not_fit_its_schema_is_refused() -> None:
    model = script()
    with pytest.raises(TypeError, match="colour"):
        await run(create_react_agent(model, [work()], context_schema=Tier), context={"colour": "gold"})
    assert model.requests == []


@pytest.mark.parametrize(("denied", "ran"), [(2, []), (1, ["work(b)"])], ids=["all", "some"])
async def test_the_hook_after_the_model_may_answer_calls(denied: int, ran: list[str]) -> None:
    recorder = Recorder()
    model = ScriptedModel([calls(("work", {"query": "a"}), ("work", {"query": "b"})), "done"])

    def deny(state: Any) -> Any:
        denied_calls = getattr(state["messages"][-1], "tool_calls", ())[:denied]
        return {"messages": [ToolMessage("denied", tool_call_id=call["id"]) for call in denied_calls]}

    result = await run(create_react_agent(model, [recorder.tool("work")], post_model_hook=deny))
    assert shape(result) == ["human:go", "ai:", *["tool:denied"] * denied, *["tool:b"] * len(ran), "ai:done"]
    assert recorder.order == ran


@pytest.mark.parametrize("option", ["prompt", "pre_model_hook", "post_model_hook"])
async def test_an_error_of_a_prompt_or_hook_arrives_bare(option: str) -> None:
    error = LookupError("no such user")

    def fails(state: Any) -> Any:
        raise error

    options: dict[str, Any] = {option: fails}
    with pytest.raises(LookupError) as caught:
        await run(create_react_agent(script(), [work()], **options))
    assert caught.value is error


async def test_a_hook_that_returns_no_update_says_so() -> None:
    with pytest.raises(Exception, match="Expected dict, got nonsense"):
        await run(create_react_agent(script(), [work()], pre_model_hook=lambda state: "nonsense"))


class Answer(BaseModel):
    """The answer."""

    number: int


SCHEMA = {"title": "Answer", "description": "It.", "type": "object", "properties": {"number": {"type": "integer"}}}


@pytest.mark.parametrize("is_chosen", [False, True])
@pytest.mark.parametrize(
    ("schema", "answer"), [(Answer, Answer(number=4)), (SCHEMA, {"number": 4})], ids=["model", "JSON"]
)
async def test_a_response_is_of_its_schema_and_its_prompt_stands_before_the_conversation(
    schema: Any, answer: Any, is_chosen: bool
) -> None:
    model = ScriptedModel(["done", calls(("Answer", {"number": 4}))])
    model_or_choice: Any = (lambda state, runtime: model) if is_chosen else model
    result = await run(
        create_react_agent(model_or_choice, [], prompt="brief", response_format=("give a number", schema))
    )
    assert result["structured_response"] == answer
    assert [shape(request)[0] for request in model.requests] == ["system:brief", "system:give a number"]


async def test_the_older_name_of_the_context_schema_still_works() -> None:
    with pytest.warns(LangGraphDeprecatedSinceV10, match="`config_schema` is deprecated"):
        agent = create_react_agent(script(), [work()], config_schema=Tier)
    assert shape(await run(agent, context={"name": "gold"})) == DONE


def passing(request: Any, call_next: Any) -> Any:
    return call_next(request)


STOPS = ("interrupt_before", "interrupt_after")
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(({"model": model}, TypeError, re.escape(f"got {model!r}")) for model in (None, 5, ["a", "b"])),
    ({"model": RunnableLambda(lambda messages: AIMessage("hi"))}, TypeError, "has no bind_tools"),
    *(({"tools": tools}, TypeError, "A tool is a LangChain tool or a function, got") for tools in ([5], ["work"])),
    ({"tools": ToolNode([work()]), "middleware": [passing]}, ValueError, "give middleware="),
    *(({option: [node]}, ValueError, f"`{node}` not found") for option in STOPS for node in ("no", "pre_model_hook")),
    *(({option: "tools"}, TypeError, rf"{option} is a list of nodes, such as \['tools'\]") for option in STOPS),
    ({"nonsense": 1, "more": 2}, TypeError, r"unexpected keyword arguments: {'nonsense': 1, 'more': 2}"),
    *(
        ({"version": bad_value}, ValueError, f"Invalid version {bad_value}.*'v1' and 'v2'")
        for bad_value in ("v3", None, 2)
    ),
    *(({"checkpointer": bad_value}, TypeError, f"Received {type(bad_value).__name__}") for bad_value in (5, object)),
    *(({name: 5}, TypeError, rf"{name}.*5") for name in ("pre_model_hook", "post_model_hook", "tools", "state_schema")),
]


@pytest.mark.parametrize(("options", "error", "reason"), REFUSED)
def test_a_slip_is_refused_when_the_agent_is_made(options: dict[str, Any], error: type[Exception], reason: str) -> None:
    arguments: dict[str, Any] = {"model": script(), "tools": [work()], **options}

    with pytest.raises(error, match=reason):
        create_react_agent(**arguments)


async def test_an_unknown_option_of_a_run_is_refused_with_the_known_ones() -> None:
    agent = create_react_agent(script(), [work()])
    with pytest.raises(TypeError, match=r"there is no option 'budgets', only .*; did you mean 'budget'\?"):
        await run(agent, budgets=1.0)


class Watch:
    """Records the calling thread, and blocks until the event loop has made a turn."""

    def __init__(self) -> None:
        self.loop_ran = threading.Event()
        self.on_loop: list[bool] = []
        self._loop_thread = threading.get_ident()

    def __call__(self) -> None:
        self.on_loop.append(threading.get_ident() == self._loop_thread)
        if not self.on_loop[-1]:
            assert self.loop_ran.wait(WAIT)

    async def tick(self) -> None:
        """Set the event from a task of the loop, so that only a running loop can set it."""
        while not self.on_loop:
            await anyio.sleep(0.001)
        self.loop_ran.set()


@pytest.mark.parametrize("option", ["prompt", "pre_model_hook", "post_model_hook", "model"])
async def test_what_is_sync_does_not_block_the_loop(option: str) -> None:
    """A prompt may read a file, and a model chooser may query a database."""
    watch, model = Watch(), ScriptedModel(["done"])

    def sync(state: Any, runtime: Any = None) -> Any:
        watch()
        return {"prompt": state["messages"], "model": model}.get(option, {})

    options: dict[str, Any] = {"model": model, option: sync}
    agent = create_react_agent(tools=[], **options)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.tick)
        await run(agent)
    assert watch.on_loop == [False]
