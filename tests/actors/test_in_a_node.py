"""Actors as tools of a node and of an agent: their lifetimes, and the messages to the model."""

from typing import Annotated, Any

import anyio
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.types import interrupt

from callboard import (
    Actor,
    ActorStartError,
    CallContext,
    CallPolicy,
    CallsInterrupted,
    InjectedState,
    ToolNode,
    ToolRuntime,
    child,
    create_react_agent,
    handler,
    tool_call,
)
from callboard.testing import ScriptedModel, calls
from tests.helpers import BrokenError, contents

from ._lives import lives


class Notebook(Actor):
    """Lines of text."""

    fatal = (BrokenError,)
    groups = {"reads": 4}

    def __init__(self, title: str = "notes") -> None:
        self.title = title

    async def start(self) -> None:
        self.lines: list[str] = []
        lives.append(f"start {self.title} {self.key}")

    async def stop(self) -> None:
        lives.append(f"stop {self.title} {self.key}")

    @handler
    async def append(self, text: str) -> int:
        """Append a line.

        Args:
            text: the line.
        """
        self.lines.append(text)
        return len(self.lines)

    @handler(group="reads")
    async def read(self) -> str:
        """Read all lines."""
        await anyio.sleep(1)
        return ",".join(self.lines)

    @handler
    async def tear(self, often: int = 1) -> str:
        """Tear the notebook."""
        if lives.count("torn") < often:
            lives.append("torn")
            raise BrokenError(self.title)
        return "whole"

    @handler(group="control")
    async def healthy(self) -> bool:
        """Not for models."""
        return True


def one(name: str, id: str = "1", **args: Any) -> list[Any]:
    return [tool_call(name, id, **args)]


def test_handlers_are_tools_with_names_descriptions_and_schemas() -> None:
    node = ToolNode([Notebook()])

    append = node.tools_by_name["append"]

    assert list(node.tools_by_name) == ["append", "read", "tear"]
    assert append.description.startswith("Append a line.")
    assert append.args["text"] == {"description": "the line.", "title": "Text", "type": "string"}


def test_two_actors_of_one_class_have_names_and_prefixes_of_their_own() -> None:
    node = ToolNode([child(Notebook("a"), name="a", prefix="a_"), child(Notebook("b"), name="b", prefix="b_")])

    assert "a_append" in node.tools_by_name
    assert "b_append" in node.tools_by_name
    with pytest.raises(ValueError, match="Two tools are named 'append'"):
        ToolNode([child(Notebook("a"), name="a"), child(Notebook("b"), name="b")])
    with pytest.raises(ValueError, match=r"Two actors are named 'Notebook'.*child\(Notebook"):
        ToolNode([Notebook("a"), Notebook("b")])


async def test_an_actor_lives_for_one_run_of_a_node_and_starts_when_it_is_asked() -> None:
    @tool
    async def plain() -> str:
        """Not an actor."""
        return "plain"

    node = ToolNode([Notebook(), plain])

    await node.ainvoke(one("plain"))
    before = list(lives)
    await node.ainvoke([tool_call("append", "1", text="a"), tool_call("append", "2", text="b")])
    second_result = await node.ainvoke(one("append", text="c"))

    assert before == []
    assert lives == ["start notes None", "stop notes None"] * 2
    assert contents(second_result) == ["1"]


async def test_an_actor_that_does_not_start_is_an_error_where_the_node_is_opened() -> None:
    class Broken(Actor):
        async def start(self) -> None:
            raise FileNotFoundError("no chromium")

        @handler
        async def goto(self, url: str) -> str:
            """Go."""
            return url

    node = ToolNode([Notebook(), Broken()])
    with pytest.raises(ActorStartError, match="The actor 'Broken' did not start: FileNotFoundError") as caught:
        async with node:
            raise AssertionError("it was opened")
    result = await node.ainvoke(one("goto", url="x"))

    assert caught.value.is_permanent
    assert lives == ["start notes None", "stop notes None"]
    assert "'goto' was not started" in contents(result)[0]
    assert "no chromium" in contents(result)[0]


@pytest.mark.real_clock
async def test_an_actor_lives_for_a_run_of_an_agent_and_longer_if_the_agent_is_open() -> None:
    script = [calls(tool_call("append", text="a")), calls(tool_call("append", text="b")), "done"]
    agent = create_react_agent(ScriptedModel(script * 3), [Notebook()])
    agent_input = {"messages": [HumanMessage("go")]}

    alone = await agent.ainvoke(agent_input)
    async with agent:
        first, second = await agent.ainvoke(agent_input), await agent.ainvoke(agent_input)

    assert contents(alone) == ["1", "2"]
    assert contents(first) == ["1", "2"]
    assert contents(second) == ["3", "4"]
    assert lives == ["start notes None", "stop notes None"] * 2


@pytest.mark.real_clock
async def test_sync_code_has_actors_too() -> None:
    script = [calls(tool_call("append", text="a")), calls(tool_call("append", text="b")), "done"]
    agent = create_react_agent(ScriptedModel(script), [Notebook()])

    result = await anyio.to_thread.run_sync(lambda: agent.invoke({"messages": [HumanMessage("go")]}))

    assert contents(result) == ["1", "2"]


async def test_injected_arguments_reach_a_handler() -> None:
    class Reader(Actor):
        @handler
        async def look(self, word: str, state: Annotated[dict[str, Any], InjectedState], runtime: ToolRuntime) -> str:
            """Look a word up."""
            return f"{word} {state['topic']} {runtime.tool_call_id}"

    node = ToolNode([Reader()])
    message = AIMessage("", tool_calls=one("look", word="w"))

    result = await node.ainvoke({"messages": [message], "topic": "t"})

    assert list(node.tools_by_name["look"].tool_call_schema.model_fields) == ["word"]
    assert contents(result) == ["w t 1"]


async def test_a_handler_may_ask_a_person() -> None:
    """`interrupt` works in a handler, although the handler runs in another task than the call."""

    class Mailer(Actor):
        @handler
        async def send(self, to: str) -> str:
            """Send a mail."""
            return f"{to}: {interrupt(f'send to {to}?')}"

    node = ToolNode([Mailer()])
    tool_calls = [tool_call("send", "1", to="a"), tool_call("send", "2", to="b")]

    with pytest.raises(CallsInterrupted) as caught:
        await node.ainvoke(tool_calls)
    stopped = caught.value
    answers = {question.id: question.value[-2] for question in stopped.args[0]}
    result = await node.ainvoke(tool_calls, ledger=stopped.ledger, resume=answers)

    assert contents(result) == ["a: a", "b: b"]


async def test_a_call_whose_actor_died_ends_as_unknown_and_the_loss_is_told_once() -> None:
    node = ToolNode([Notebook()])

    async with node:
        await node.ainvoke(one("append", text="a"))
        died = (await node.ainvoke(one("tear")))["messages"][0]
        after = [contents(await node.ainvoke(one("append", text="b")))[0] for _ in range(2)]

    assert died.status == "error"
    assert died.additional_kwargs["callboard"]["ended"] == "unknown"
    assert "'tear' had begun when Notebook died of BrokenError('notes')" in died.content
    assert "Whether it had its effect is unknown. What Notebook held is lost." in died.content
    assert after == ["1", "2"]


async def test_each_conversation_is_told_once_that_state_was_lost() -> None:
    node = ToolNode([Notebook()], policies={"tear": CallPolicy(on_unknown="fail")})

    async def append(thread: str) -> Any:
        config: RunnableConfig = {"configurable": {"thread_id": thread}}
        return contents(await node.ainvoke(one("append", text="x"), config))[0]

    async with node:
        before = [await append("a"), await append("b")]
        await node.ainvoke(one("tear"))
        after = [await append(thread) for thread in ("a", "a", "b", "c", "b")]

    notice = "Notebook was restarted, and what it held is lost."
    assert before == ["1", "2"]
    assert after == [f"1\n\n({notice})", "2", f"3\n\n({notice})", "4", "5"]


def by_user(call: Any) -> str:
    return str(call["args"]["text"])[0]


def by_thread(call: Any, context: CallContext) -> str:
    return f"{context.config['configurable']['thread_id']} {context.state['topic']}"


async def test_there_is_one_actor_for_each_key_which_may_look_at_config_and_state() -> None:
    node = ToolNode([child(Notebook, key=by_thread)])

    async def append(thread: str, topic: str) -> Any:
        node_input = {"messages": [AIMessage("", tool_calls=one("append", text="x"))], "topic": topic}
        return contents(await node.ainvoke(node_input, {"configurable": {"thread_id": thread}}))[0]

    async with node:
        results = [await append(*arguments) for arguments in (("1", "a"), ("2", "a"), ("1", "a"), ("1", "b"))]

    assert results == ["1", "1", "2", "1"]
    assert list(node.tools_by_name["append"].args) == ["text"]
    assert lives[0] == "start notes 1 a"


async def test_a_key_function_that_fails_says_whose_it_is() -> None:
    """A failing key function is a mistake of the program, so it raises instead of telling the model."""
    node = ToolNode([child(Notebook, key=lambda call: call["args"]["user"])])

    with anyio.fail_after(5), pytest.raises(KeyError) as caught:
        await node.ainvoke(one("append", text="a"))

    assert "child(Notebook, key=...)" in "".join(caught.value.__notes__)


class Untyped(Actor):
    @handler
    async def goto(self, url):  # type: ignore[no-untyped-def]
        """Go."""
        return url


class Undescribed(Actor):
    @handler
    async def goto(self, url: str) -> str:
        return url


class Handless(Actor):
    pass


class Greedy(Actor):
    @handler
    async def goto(self, *urls: str) -> None:
        """Go."""


@pytest.mark.parametrize(
    ("tools", "error", "says"),
    [
        ([Untyped()], TypeError, "Untyped.goto does not say of which type 'url' is"),
        ([Undescribed()], TypeError, "Undescribed.goto has no docstring"),
        ([Handless()], ValueError, "the actor Handless has no handler"),
        ([Greedy()], TypeError, r"Greedy.goto takes \*urls"),
        ([Notebook], TypeError, r"it is a class: write Notebook\(...\)"),
        ([Notebook().append], TypeError, "give the actor itself"),
        (Notebook(), TypeError, "ToolNode takes a list of tools"),
    ],
)
def test_what_cannot_be_a_tool_is_an_error_when_the_node_is_built(tools: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        ToolNode(tools)


async def test_a_node_is_open_once_at_a_time() -> None:
    """With two blocks at once, nobody could say which block closes the actors."""
    node = ToolNode([Notebook()])

    async with node:
        with pytest.raises(RuntimeError, match="is open already"):
            async with node:
                raise AssertionError("it was opened twice")


async def test_statistics_say_what_actors_do() -> None:
    node = ToolNode([child(Notebook, key=by_user, cap=1), child(Notebook, name="other", prefix="other_")])

    before = node.statistics().actors
    async with node:
        await node.ainvoke([tool_call("append", text, text=text) for text in ("a", "b")])
        await node.ainvoke(one("other_tear"))
        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(node.ainvoke, one("other_read"))
            await anyio.sleep(0.5)
            during = node.statistics().actors["other"]
        after = node.statistics().actors

    assert before == {}
    assert (during.alive, during.running, during.waiting) == (1, 4, 2)
    assert (after["Notebook"].alive, after["Notebook"].evictions, after["Notebook"].restarts) == (1, 1, 0)
    assert (after["other"].running, after["other"].waiting, after["other"].restarts) == (0, 0, 1)
