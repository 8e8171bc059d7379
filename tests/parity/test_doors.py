"""Sync and async halves of models, tools and hooks: `invoke` and `ainvoke` use the same half as in LangGraph."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from callboard import create_react_agent

from ._harness import DIRECT_MODES, Case, alike, table_test, wants


class TwoHalves(BaseChatModel):
    """A model that records which half was called; its first reply asks for a tool."""

    log: list[Any]
    tool: str = "both"

    @property
    def _llm_type(self) -> str:
        return "two halves"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(**kwargs)

    def _reply(self, messages: list[Any]) -> AIMessage:
        if messages[-1].type == "tool":
            return AIMessage("done", id="2")
        return AIMessage("", id="1", tool_calls=[{"name": self.tool, "args": {"x": 1}, "id": "call-1"}])

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        self.log.append("model: sync")
        return ChatResult(generations=[ChatGeneration(message=self._reply(messages))])

    async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        self.log.append("model: async")
        return ChatResult(generations=[ChatGeneration(message=self._reply(messages))])


class StreamsTwoHalves(TwoHalves):
    """A model that streams, token by token, which half was called."""

    def _chunks(self, messages: list[Any]) -> Iterator[ChatGenerationChunk]:
        reply = self._reply(messages)
        pieces: list[Any] = [{"tool_call_chunks": [
            {"name": call["name"], "args": '{"x": 1}', "id": call["id"], "index": 0} for call in reply.tool_calls
        ]}] if reply.tool_calls else [{"content": "do"}, {"content": "ne"}]  # fmt: skip
        for piece in pieces:
            yield ChatGenerationChunk(message=AIMessageChunk(**{"content": "", "id": reply.id, **piece}))

    def _stream(self, messages: Any, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        self.log.append("stream: sync")
        yield from self._chunks(messages)

    async def _astream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        self.log.append("stream: async")
        for chunk in self._chunks(messages):
            yield chunk


def halves(log: list[Any], label: str, result: Any) -> tuple[Any, Any]:
    """A sync and an async function that record which of them was called."""

    def sync(value: Any) -> Any:
        log.append(f"{label}: sync")
        return result(value)

    async def run_async(value: Any) -> Any:
        log.append(f"{label}: async")
        return result(value)

    return sync, run_async


def tool_with_halves(log: list[Any]) -> StructuredTool:
    def func(x: int) -> str:
        """Both halves."""
        log.append("tool: sync")
        return "ok"

    async def coroutine(x: int) -> str:
        log.append("tool: async")
        return "ok"

    return StructuredTool.from_function(func, coroutine, name="both")


class OfAClass(BaseTool):
    name: str = "both"
    description: str = "Both halves."
    log: list[Any]

    def _run(self, x: int) -> str:
        self.log.append("tool: sync")
        return "ok"

    async def _arun(self, x: int) -> str:
        self.log.append("tool: async")
        return "ok"


class Invoked(OfAClass):
    """A tool with its own `invoke` and `ainvoke`."""

    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        self.log.append("tool: invoke")
        return super().invoke(*args, **kwargs)

    async def ainvoke(self, *args: Any, **kwargs: Any) -> Any:
        self.log.append("tool: ainvoke")
        return await super().ainvoke(*args, **kwargs)


def of_class(cls: type[OfAClass]) -> Any:
    return lambda log: cls(log=log)


@pytest.mark.parametrize(
    "make", [tool_with_halves, of_class(OfAClass), of_class(Invoked)], ids=["func", "class", "invoke"]
)
@alike
def test_a_tool_with_both_halves(p: Any, make: Any) -> Case:
    """Each half may have its own client, and perhaps only one client has the proxy."""
    log: list[Any] = []
    return Case(p.ToolNode([make(log)]), wants("both", {"x": 1}), log=log)


@alike
def test_wrappers_of_both_kinds(p: Any) -> Case:
    """A check with a thread lock must not be replaced by one with a task lock."""
    log: list[Any] = []

    def wrap(request: Any, execute: Any) -> Any:
        log.append("wrapper: sync")
        return execute(request)

    async def awrap(request: Any, execute: Any) -> Any:
        log.append("wrapper: async")
        return await execute(request)

    node = p.ToolNode([tool_with_halves(log)], wrap_tool_call=wrap, awrap_tool_call=awrap)
    return Case(node, wants("both", {"x": 1}), log=log)


def agent_of(p: Any, log: list[Any], model: Any, **options: Any) -> Case:
    agent = p.create_react_agent(model, [tool_with_halves(log)], version="v2", **options)
    return Case(agent, {"messages": [("user", "go")]}, own_runtime=True, log=log)


@alike(modes=DIRECT_MODES)
def test_the_model_the_prompt_and_the_hooks_of_an_agent(p: Any) -> Case:
    """This covers every argument of an agent that can have two halves."""
    log: list[Any] = []
    prompt = RunnableLambda(*halves(log, "prompt", lambda state: state["messages"]))
    before = RunnableLambda(*halves(log, "before", lambda _: {}))
    after = RunnableLambda(*halves(log, "after", lambda _: {}))
    return agent_of(
        p, log, TwoHalves(log=log), prompt=prompt, pre_model_hook=before, post_model_hook=after,
    )  # fmt: skip


def a_sequence(p: Any) -> Case:
    log: list[Any] = []
    model = TwoHalves(log=log).bind(tools=[{"type": "function", "function": {"name": "both"}}])
    last = RunnableLambda(*halves(log, "last", lambda message: message))
    return agent_of(p, log, model | last)


def chosen(p: Any) -> Case:
    log: list[Any] = []
    model = TwoHalves(log=log)
    return agent_of(p, log, lambda state, runtime: model)


def streaming(p: Any) -> Case:
    log: list[Any] = []
    case = agent_of(p, log, StreamsTwoHalves(log=log))
    case.node = case.node.with_config(callbacks=[Tokens(log)])
    return case


test_each_half_of_a_model_is_called_alike = table_test(
    {"a sequence": a_sequence, "a model that is chosen": chosen, "a model that streams, from a thread": streaming},
    modes=DIRECT_MODES,
)


class Tokens(BaseCallbackHandler):
    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
        self.log.append(("token", token))


async def test_a_checkpointer_with_both_halves() -> None:
    """A connection that sync code has opened must be used by sync code."""
    log: list[Any] = []
    agent = create_react_agent(TwoHalves(log=[]), [tool_with_halves([])], checkpointer=_recording(log))
    config: Any = {"configurable": {"thread_id": "1"}}
    agent.invoke({"messages": [("user", "go")]}, config)
    agent.get_state(config)
    list(agent.get_state_history(config))
    agent.update_state(config, {"messages": [("user", "more")]})
    assert {half for _, half in log} == {"sync"}
    assert {method for method, _ in log} == {"get_tuple", "list", "put", "put_writes"}
    log.clear()
    await agent.ainvoke({"messages": [("user", "go")]}, config)
    await agent.aget_state(config)
    assert {half for _, half in log} == {"async"}


def _recording(log: list[Any]) -> Any:
    """Return a saver with both halves; the plain in-memory saver is called directly on each path."""
    inner = InMemorySaver()

    def halves_of(name: str) -> dict[str, Any]:
        def sync(_: Any, *args: Any, **kwargs: Any) -> Any:
            log.append((name, "sync"))
            return getattr(inner, name)(*args, **kwargs)

        async def run_async(_: Any, *args: Any, **kwargs: Any) -> Any:
            log.append((name, "async"))
            return getattr(inner, name)(*args, **kwargs)

        return {name: sync, f"a{name}": run_async}

    async def alist(_: Any, *args: Any, **kwargs: Any) -> Any:
        log.append(("list", "async"))
        for checkpoint in inner.list(*args, **kwargs):
            yield checkpoint

    methods = {name: half for of in ("get_tuple", "list", "put", "put_writes") for name, half in halves_of(of).items()}
    get_next_version = {"get_next_version": lambda _, *args: inner.get_next_version(*args)}
    return type("Both", (BaseCheckpointSaver,), {**methods, **get_next_version, "alist": alist})()


UNTOLD = ("call_model", "should_continue", "Prompt")
"""Runs of LangGraph's own inner functions, which callboard does not have."""


class Tree(BaseCallbackHandler):
    """Records runs by name, each with the names of its ancestors."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log
        self._paths: dict[UUID | None, tuple[str, ...]] = {None: ()}

    def _start(self, event: str, name: str | None, kwargs: dict[str, Any]) -> None:
        parent_path = self._paths.get(kwargs.get("parent_run_id"), ("?",))
        path = (*parent_path, "graph" if not parent_path else str(name))
        self._paths[kwargs["run_id"]] = path
        self._tell(event, path)

    def _end(self, event: str, kwargs: dict[str, Any]) -> None:
        self._tell(event, self._paths[kwargs["run_id"]])

    def _tell(self, event: str, path: tuple[str, ...]) -> None:
        if path[-1] not in UNTOLD:
            self.log.append((event, "/".join(path)))

    def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
        self._start("chain", kwargs.get("name"), kwargs)

    def on_chain_end(self, outputs: Any, **kwargs: Any) -> None:
        self._end("chain end", kwargs)

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self._start("model", kwargs.get("name"), kwargs)

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        self._end("model end", kwargs)

    def on_tool_start(self, serialized: Any, input_str: str, **kwargs: Any) -> None:
        self._start("tool", kwargs.get("name"), kwargs)

    def on_tool_end(self, output: Any, **kwargs: Any) -> None:
        self._end("tool end", kwargs)


@alike(modes=DIRECT_MODES)
def test_runs_below_models_tools_and_hooks_have_the_same_parents(p: Any) -> Case:
    """A thread has the callbacks of its run, and runs started in it are children of that run."""
    log: list[Any] = []
    model_log: list[Any] = []
    inside = RunnableLambda(lambda x: x, name="inside")

    def before(state: Any) -> Any:
        inside.invoke(1)
        return {}

    def func(x: int) -> str:
        """Runs something."""
        inside.invoke(2)
        return "ok"

    tool = StructuredTool.from_function(func, name="both")
    agent = p.create_react_agent(
        TwoHalves(log=model_log), [tool], pre_model_hook=before, prompt=lambda s: s["messages"]
    )
    agent = agent.with_config(callbacks=[Tree(log)])
    return Case(agent, {"messages": [("user", "go")]}, own_runtime=True, log=log)


@alike(modes=DIRECT_MODES)
def test_an_agent_that_a_tool_runs_has_the_door_of_the_tools_own_choice(p: Any) -> Case:
    """The tool uses `invoke` in a sync function, and `await ainvoke` in an async one."""
    log: list[Any] = []
    inner = p.create_react_agent(TwoHalves(log=log), [tool_with_halves(log)])
    inputs = {"messages": [("user", "go")]}

    def func(x: int) -> str:
        """Runs an agent."""
        return str(inner.invoke(inputs)["messages"][-1].content)

    async def coroutine(x: int) -> str:
        return str((await inner.ainvoke(inputs))["messages"][-1].content)

    tool = StructuredTool.from_function(func, coroutine, name="both")
    outer = p.create_react_agent(TwoHalves(log=[]), [tool])
    return Case(outer, inputs, own_runtime=True, log=log)
