"""`create_agent`: results, streams and threads equal those of LangChain's agent.

Intended differences: a result has its id as soon as it is streamed; an empty input is refused; input takes one step in
callboard, so that the numbers of steps differ; a call without a result gets an error message before the model is asked.
A jump from `before_model` to "model" works (LangChain: KeyError).
"""

import asyncio
from collections.abc import Callable
from itertools import cycle
from typing import Annotated, Any, NamedTuple

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    ModelResponse,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    hook_config,
)
from langchain.agents.middleware.types import ExtendedModelResponse, OmitFromInput, PrivateStateAttr
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.channels import UntrackedValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.types import Command
from typing_extensions import NotRequired

from ._dump import dump
from ._harness import DIRECT_MODES, QUESTION, THREAD, Case, ask, call, cheer, double, fails, final, table_test, turn
from ._model import Answer, ReplayModel
from ._prebuilt import candidate, reference

MODES: list[Any] = ["values", "updates", "messages", "custom", "tasks", ["updates", "custom"]]


TOOLS = [double, ask, final, fails, cheer]


DONE = AIMessage("done", id="ai-9")
ONE = (turn(1, call("double", {"x": 1}, "a")), DONE)
TWO = (turn(1, call("double", {"x": 1}, "a"), call("double", {"x": 2}, "b")), DONE)
ASKS = (turn(1, call("double", {"x": 1}, "a"), call("ask", {"what": "why"}, "b")), DONE)
FOREVER = tuple(turn(n, call("double", {"x": n}, f"c{n}")) for n in range(30))
DIRECT = (turn(1, call("final", {"x": 1}, "a")), DONE)
MIXED = (turn(1, call("final", {"x": 1}, "a"), call("double", {"x": 1}, "b")), DONE)


class Moody(AgentState[Any]):
    mood: NotRequired[str]


class Hooks(AgentMiddleware[Any, Any, Any]):
    """All node hooks, with a private key, a key that no input sets, and a value that is never stored."""

    class State(AgentState[Any]):
        seen: NotRequired[Annotated[list[str], lambda old, new: [*old, *new]]]
        secret: NotRequired[Annotated[str, PrivateStateAttr]]
        given: NotRequired[Annotated[str, OmitFromInput]]
        loose: NotRequired[Annotated[Any, UntrackedValue, PrivateStateAttr]]

    state_schema = State

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        return {"seen": ["before_agent"], "secret": "s", "loose": 1}

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any]:
        get_stream_writer()("before")
        return {"seen": [f"before_model {state.get('secret')} {state.get('loose')}"]}

    def after_model(self, state: Any, runtime: Any) -> None:
        return None

    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        return {"seen": ["after_agent"], "given": "kept"}


class Jumps(AgentMiddleware[Any, Any, Any]):
    """Jumps once from a hook to a target."""

    def __init__(self, hook: str, target: str, *, declared: bool = True) -> None:
        super().__init__()
        self.done = False

        def jump(middleware: "Jumps", state: Any, runtime: Any) -> Any:
            if middleware.done:
                return None
            middleware.done = True
            return {"jump_to": target, "messages": [AIMessage("jumped", id="j")] if target != "tools" else []}

        self.__class__ = type("Jumps", (Jumps,), {hook: hook_config(can_jump_to=[target])(jump) if declared else jump})  # type: ignore[assignment]


class Wraps(AgentMiddleware[Any, Any, Any]):
    """Wraps the model and the tools from sync and from async code."""

    def __init__(self, log: list[Any]) -> None:
        super().__init__()
        self.log = log

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        self.log.append(("model", [message.content for message in request.messages], request.system_message))
        response = handler(request.override(system_message=SystemMessage("wrapped")))
        return ExtendedModelResponse(model_response=response, command=Command(update={"mood": "wrapped"}))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        self.log.append(("model", [message.content for message in request.messages], request.system_message))
        response = await handler(request.override(system_message=SystemMessage("wrapped")))
        return ExtendedModelResponse(model_response=response, command=Command(update={"mood": "wrapped"}))

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        self.log.append(("tool", request.tool_call["id"], len(request.state["messages"])))
        return handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        self.log.append(("tool", request.tool_call["id"], len(request.state["messages"])))
        return await handler(request)


class Answers(AgentMiddleware[Any, Any, Any]):
    """Answers in place of the model."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return ModelResponse(result=[AIMessage("from the middleware", id="m")])

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return AIMessage("from the middleware", id="m")


Middlewares = Callable[[list[Any]], list[Any]]


class Scene(NamedTuple):
    """Replies of the model, middleware, and options of an agent."""

    replies: Any
    middleware: Middlewares = lambda log: []
    options: dict[str, Any] = {}
    input: Any = QUESTION
    config: Any = {}

    def agent(self, ns: Any, log: list[Any], *, model: Any = None, **options: Any) -> Any:
        model = model or ReplayModel(*self.replies, log=log)
        agent_options = {"state_schema": Moody, **self.options, **options}
        return ns.create_agent(model, TOOLS, middleware=self.middleware(log), **agent_options)

    def case(self, ns: Any) -> Case:
        log: list[Any] = []
        return Case(self.agent(ns, log), self.input, config=self.config, own_runtime=True, log=log)


STRUCTURED = (*ONE[:1], turn(2, call("Answer", {"number": 2}, "s")))
WRONG = (turn(1, call("Answer", {"number": "no"}, "s")), turn(2, call("Answer", {"number": 2}, "s2")))

SCENES: dict[str, Scene] = {
    "an answer": Scene((DONE,)),
    "one call": Scene(ONE),
    "two calls at once": Scene(TWO),
    "a command from a tool": Scene((turn(1, call("cheer", {}, "a")), DONE)),
    "a tool that ends the run": Scene(DIRECT),
    "one of two tools ends the run": Scene(MIXED),
    "an unknown tool": Scene((turn(1, call("nope", {}, "a")), DONE)),
    "wrong arguments": Scene((turn(1, call("double", {"x": "no"}, "a")), DONE)),
    "a system prompt and a name": Scene(ONE, options={"system_prompt": "Be brief.", "name": "ann"}),
    "hooks and private keys": Scene(ONE, lambda log: [Hooks()], input={**QUESTION, "given": "x", "secret": "y"}),
    "wrappers": Scene(ONE, lambda log: [Wraps(log)]),
    "wrappers and hooks": Scene(ONE, lambda log: [Hooks(), Wraps(log), TodoListMiddleware()]),
    "a middleware that answers": Scene((DONE,), lambda log: [Answers()]),
    **{
        f"a jump from {hook} to {target}{'' if declared else ', not declared'}": Scene(
            # No call is open at a jump to the model: callboard would give it an error message, for the provider.
            (DONE, DONE) if (hook, target) == ("after_model", "model") else ONE,
            lambda log, hook=hook, target=target, declared=declared: [Jumps(hook, target, declared=declared)],
        )
        for hook in ("before_agent", "before_model", "after_model", "after_agent")
        for target in ("end", "model")
        for declared in (True, False)
        if (hook, target, declared) != ("before_model", "model", True)
    },
    "a structured answer by a tool": Scene(STRUCTURED, options={"response_format": ToolStrategy(Answer)}),
    "a structured answer that is wrong at first": Scene(WRONG, options={"response_format": ToolStrategy(Answer)}),
    "a structured answer by the provider": Scene(
        (AIMessage('{"number": 2}', id="p"),), options={"response_format": ProviderStrategy(Answer)}
    ),
    "a limit of requests": Scene(FOREVER, lambda log: [ModelCallLimitMiddleware(run_limit=2)]),
    "a limit of calls": Scene(FOREVER, lambda log: [ToolCallLimitMiddleware(run_limit=2, exit_behavior="end")]),
}

RAISES: dict[str, tuple[Scene, str]] = {
    "an error of a tool": (Scene((turn(1, call("fails", {"x": 1}, "a")), DONE)), "ValueError"),
    "the recursion limit": (Scene(FOREVER, config={"recursion_limit": 7}), "GraphRecursionError"),
}

test_a_run_has_the_same_result_and_asks_the_same = table_test(
    {
        **{label: scene.case for label, scene in SCENES.items()},
        **{label: (scene.case, error) for label, (scene, error) in RAISES.items()},
    },
    modes=DIRECT_MODES,
)


async def chunks(ns: Any, scene: Scene, mode: Any) -> list[Any]:
    agent = scene.agent(ns, [], checkpointer=InMemorySaver())
    config: Any = {**THREAD, **scene.config}
    return [_normalize(dump(chunk)) async for chunk in agent.astream(scene.input, config, stream_mode=mode)]


def _normalize(value: Any) -> Any:
    if isinstance(value, list):
        return [_normalize(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("message") in ("ToolMessage", "AIMessage") and value["id"] is None:
        value = {**value, "id": "<random>"}
    return {key: _normalize(item) for key, item in value.items()}


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("label", SCENES)
def test_a_stream_tells_the_same(label: str, mode: Any) -> None:
    expected = asyncio.run(chunks(reference(), SCENES[label], mode))
    assert asyncio.run(chunks(candidate(), SCENES[label], mode)) == expected


class Talk(NamedTuple):
    """Inputs of runs on one thread."""

    scene: Scene
    inputs: tuple[Any, ...]


AGAIN = {"messages": [HumanMessage("more", id="h2")]}
HUMAN = HumanInTheLoopMiddleware(interrupt_on={"double": True})
APPROVE, REJECT = {"type": "approve"}, {"type": "reject", "message": "no"}
EDIT = {"type": "edit", "edited_action": {"name": "double", "args": {"x": 5}}}

TALKS: dict[str, Talk] = {
    "a second run": Talk(Scene(ONE), (QUESTION, AGAIN)),
    "a second run with hooks": Talk(Scene(ONE, lambda log: [Hooks()]), (QUESTION, AGAIN)),
    "a question of a tool": Talk(Scene(ASKS), (QUESTION, Command(resume="because"))),
    **{
        f"an approval: {decision['type']}": Talk(
            Scene(ONE, lambda log: [HUMAN]), (QUESTION, Command(resume={"decisions": [decision]}))
        )
        for decision in (APPROVE, REJECT, EDIT)
    },
    "two approvals at once": Talk(
        Scene(TWO, lambda log: [HUMAN]), (QUESTION, Command(resume={"decisions": [APPROVE, REJECT]}))
    ),
    "a stop before the tools": Talk(Scene(TWO, options={"interrupt_before": ["tools"]}), (QUESTION, None)),
    "a stop after a hook": Talk(
        Scene(ONE, lambda log: [Hooks()], options={"interrupt_after": ["Hooks.before_model"]}), (QUESTION, None, None)
    ),
    "a structured answer of each run": Talk(
        Scene((*STRUCTURED, DONE), options={"response_format": ToolStrategy(Answer)}), (QUESTION, AGAIN)
    ),
}


def places(talk: Talk, *namespaces: Any) -> list[Any]:
    """Return the result of each run, and the place where its thread then stands; runs take the namespaces in turns."""
    outcomes: list[Any] = []
    saver, model = InMemorySaver(), ReplayModel(*talk.scene.replies)
    for value, ns in zip(talk.inputs, cycle(namespaces), strict=False):
        agent = talk.scene.agent(ns, [], model=model, checkpointer=saver)
        result = agent.invoke(value, THREAD)
        snapshot = agent.get_state(THREAD)
        questions = [question.value for question in snapshot.interrupts]
        values = dict(snapshot.values)
        outcomes.append(
            _normalize(dump([{**result, "__interrupt__": questions}, values, sorted(set(snapshot.next)), questions]))
        )
    return outcomes


@pytest.mark.parametrize("label", TALKS)
def test_a_thread_stands_at_the_same_place(label: str) -> None:
    assert places(TALKS[label], candidate()) == places(TALKS[label], reference())


@pytest.mark.parametrize("label", TALKS)
def test_each_agent_resumes_the_threads_of_the_other(label: str) -> None:
    expected = places(TALKS[label], reference())
    assert places(TALKS[label], reference(), candidate()) == expected
    assert places(TALKS[label], candidate(), reference()) == expected
