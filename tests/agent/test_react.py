"""Basic behaviour of the ReAct agent on every loop; `tests/parity` compares it with LangGraph's."""

from typing import Any

import anyio
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.errors import EmptyInputError, GraphRecursionError, InvalidUpdateError
from langgraph.types import interrupt

from callboard import CallPolicy, Limit, ToolNode, create_react_agent
from callboard.conversations._history import UNANSWERED
from callboard.testing import Recorder, ScriptedModel, calls

# On trio the model runs on the background loop, in another thread, for which a virtual clock does not wait.
pytestmark = pytest.mark.real_clock

WAIT = 10
QUESTION = {"messages": [("user", "go")]}


def shape(result: Any) -> list[str]:
    return [f"{message.type}:{message.content}" for message in result["messages"]]


async def test_the_model_is_asked_until_it_has_an_answer() -> None:
    """The sequence is model, batch, model."""
    recorder = Recorder()
    model = ScriptedModel([calls(("work", {"query": "a"}), ("work", {"query": "b"})), calls("work"), "done"])

    with anyio.fail_after(WAIT):
        result = await create_react_agent(model, [recorder.tool("work")]).ainvoke(QUESTION)

    assert shape(result) == ["human:go", "ai:", "tool:a", "tool:b", "ai:", "tool:work", "ai:done"]
    assert len(model.requests) == 3


async def test_a_tool_node_brings_its_limits_along() -> None:
    """Policies belong to the node, and also apply inside an agent."""
    recorder = Recorder()
    node = ToolNode(
        [recorder.tool("work", seconds=0.02), recorder.tool("stuck", hang=True)],
        policies={"work": CallPolicy(limit=Limit(concurrency=2)), "stuck": CallPolicy(timeout=0.05)},
    )
    model = ScriptedModel([calls(*["work"] * 6, "stuck"), "done"])

    with anyio.fail_after(WAIT):
        result = await create_react_agent(model, node).ainvoke(QUESTION)

    statuses = [message.status for message in result["messages"] if isinstance(message, ToolMessage)]
    assert statuses == ["success"] * 6 + ["error"]
    assert recorder.peak_of("work") == 2


async def test_max_concurrency_of_the_config_bounds_each_batch() -> None:
    """Promise 7: the limit applies on every path."""
    recorder = Recorder()
    model = ScriptedModel([calls(*["work"] * 5), "done"])

    with anyio.fail_after(WAIT):
        await create_react_agent(model, [recorder.tool("work", seconds=0.01)]).ainvoke(QUESTION, {"max_concurrency": 1})

    assert recorder.peak == 1


async def test_an_unanswered_call_in_the_history_is_answered_where_it_was_asked() -> None:
    """Promise 2: LangGraph would refuse the thread from then on."""
    history = [
        HumanMessage("first"),
        calls(("work", {"query": "a"}), ("work", {"query": "b"})),
        ToolMessage("a", tool_call_id="call_1"),
        HumanMessage("never mind"),
    ]
    for number, call in enumerate(history[1].tool_calls, start=1):
        call["id"] = f"call_{number}"
    recorder, model = Recorder(), ScriptedModel(["fine"])

    with anyio.fail_after(WAIT):
        result = await create_react_agent(model, [recorder.tool("work")]).ainvoke({"messages": history})

    assert shape(result) == ["human:first", "ai:", "tool:a", f"tool:{UNANSWERED}", "human:never mind", "ai:fine"]
    assert [message.content for message in model.requests[0]] == [message.content for message in result["messages"]][
        :-1
    ]
    assert recorder.count("started") == 0


async def test_a_loop_without_end_runs_out_of_steps() -> None:
    """The guard tells the user, or raises if no message is possible."""
    agent = create_react_agent(ScriptedModel([calls("work")], loop=True), [Recorder().tool("work")])

    with anyio.fail_after(WAIT):
        apology = await agent.ainvoke(QUESTION, {"recursion_limit": 4})
        with pytest.raises(GraphRecursionError):
            await agent.ainvoke(QUESTION, {"recursion_limit": 5})

    assert apology["messages"][-1].content == "Sorry, need more steps to process this request."


async def test_questions_of_calls_come_back_with_the_conversation() -> None:
    """All questions are in the result under LangGraph's key."""

    async def ask(query: str) -> str:
        """Ask."""
        return str(interrupt(query))

    model = ScriptedModel([calls(("ask", {"query": "a"}), ("ask", {"query": "b"}))])

    with anyio.fail_after(WAIT):
        result = await create_react_agent(model, [ask]).ainvoke(QUESTION)

    assert [question.value for question in result["__interrupt__"]] == ["a", "b"]
    assert isinstance(result["messages"][-1], AIMessage)


async def test_an_error_that_nobody_handles_arrives_bare() -> None:
    """Promise 3: an error without a handler leaves the agent unwrapped."""
    error = ValueError("no")
    agent = create_react_agent(ScriptedModel([calls("work")]), [Recorder().tool("work", raises=error)])

    with anyio.fail_after(WAIT), pytest.raises(ValueError, match="no") as caught:
        await agent.ainvoke(QUESTION)

    assert caught.value is error


class Family(BaseCallbackHandler):
    """Records the parent of each run."""

    def __init__(self) -> None:
        self.names: dict[Any, str] = {}
        self.born: list[tuple[str, str | None]] = []
        self.ended: list[str] = []

    def _start(self, name: str, run_id: Any, parent_run_id: Any) -> None:
        self.names[run_id] = name
        self.born.append((name, self.names.get(parent_run_id)))

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: Any, parent_run_id: Any = None, **kw: Any
    ) -> None:
        self._start(kw["name"], run_id, parent_run_id)

    def on_chain_end(self, outputs: Any, *, run_id: Any, **kw: Any) -> None:
        self.ended.append(self.names[run_id])

    def on_chain_error(self, error: Any, *, run_id: Any, **kw: Any) -> None:
        self.ended.append(f"{self.names[run_id]} failed")

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: Any, parent_run_id: Any = None, **kw: Any
    ) -> None:
        self._start("model", run_id, parent_run_id)

    def on_tool_start(self, serialized: Any, text: Any, *, run_id: Any, **kw: Any) -> None:
        self._start("tool", run_id, kw.get("parent_run_id"))


@pytest.mark.parametrize("raises", [None, ValueError("no")])
async def test_models_and_tools_are_traced_below_one_run_of_the_agent(raises: Exception | None) -> None:
    """A trace of one agent run is one tree."""
    family = Family()
    model = ScriptedModel([calls("work"), "done"])
    agent = create_react_agent(model, [Recorder().tool("work", raises=raises)], name="clerk")

    with anyio.fail_after(WAIT):
        if raises is None:
            await agent.ainvoke(QUESTION, {"callbacks": [family]})
        else:
            with pytest.raises(ValueError, match="no"):
                await agent.ainvoke(QUESTION, {"callbacks": [family]})

    reply = [("agent", "clerk"), ("model", "agent")]
    again = reply if raises is None else []
    assert family.born == [("clerk", None), *reply, ("tools", "clerk"), ("tool", "tools"), *again]
    assert family.ended == (
        ["agent", "tools", "agent", "clerk"] if raises is None else ["agent", "tools failed", "clerk failed"]
    )


def test_from_sync_code() -> None:
    """`invoke` gives the same result as `ainvoke`."""
    agent = create_react_agent(ScriptedModel([calls("work"), "done"]), [Recorder().tool("work")])

    assert shape(agent.invoke(QUESTION)) == ["human:go", "ai:", "tool:work", "ai:done"]


@pytest.mark.parametrize("given", [{}, {"question": "hi"}, None], ids=repr)
async def test_an_agent_without_messages_says_what_it_needs(given: Any) -> None:
    """The error shows the required form."""
    agent = create_react_agent(ScriptedModel(["hi"]), [])

    with pytest.raises(EmptyInputError, match="An agent starts from messages"):
        await agent.ainvoke(given)


async def test_input_that_is_no_state_is_refused() -> None:
    """The error has LangGraph's text."""
    with pytest.raises(InvalidUpdateError, match="Expected dict, got hello"):
        await create_react_agent(ScriptedModel(["hi"]), []).ainvoke("hello")
