"""Commands that tools return: how they are checked, named, combined, and obeyed by the graph."""

from collections.abc import Callable
from typing import Any

from langchain_core.messages import HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, Send

from ._harness import DIRECT_MODES, Case, MessageList, alike, asks, call, table_test, wants


def message(id: str = "call-1", content: str = "done") -> ToolMessage:
    return ToolMessage(content, tool_call_id=id, id=f"m-{id}-{content}")


def gives(name: str, make: Callable[[], Any]) -> StructuredTool:
    return StructuredTool.from_function(func=make, name=name, description="Give.")


def single(make: Callable[[], Any], *, as_list: bool = False, **case: Any) -> Any:
    """Return a scenario of a tool that returns a command; `make` makes it."""
    state = [asks(call("give"))] if as_list else wants("give", foo="bar")
    graph_options: dict[str, Any] = {"state": MessageList} if as_list else {}
    return lambda ns: Case(ns.ToolNode([gives("give", make)]), state, **graph_options, **case)


def clear() -> RemoveMessage:
    return RemoveMessage(id=REMOVE_ALL_MESSAGES)


DICT_COMMANDS: dict[str, Callable[[], Any]] = {
    "an update with its message": lambda: Command(update={"foo": "new", "messages": [message()]}),
    "an update with a message as dict": lambda: Command(
        update={"messages": [{"role": "tool", "content": "d", "tool_call_id": "call-1", "id": "m"}]}
    ),
    "an update with more messages": lambda: Command(update={"messages": [message(), HumanMessage("h", id="h")]}),
    "an update with two messages for the call": lambda: Command(
        update={"messages": [message(content="a"), message(content="b")]}
    ),
    "an update and a goto": lambda: Command(update={"messages": [message()]}, goto="other"),
    "an update and a goto list": lambda: Command(update={"messages": [message()]}, goto=["other"]),
    "an update and a send": lambda: Command(update={"messages": [message()]}, goto=[Send("other", {"foo": "s"})]),
    "a goto alone": lambda: Command(goto="other"),
    "a goto of the end": lambda: Command(update={"messages": [message()]}, goto="__end__"),
    "a removal of all messages": lambda: Command(update={"messages": [clear()]}),
    "a list with a command and a message": lambda: [Command(update={"foo": "new"}), message()],
    "a list with a command that holds the message": lambda: [
        Command(update={"foo": "new"}),
        Command(update={"messages": [message()]}),
    ],
    "a list with a message first": lambda: [message(), Command(goto="other")],
    "a list with a send": lambda: [message(), Command(goto=[Send("other", {"foo": "s"})])],
}


REFUSED: dict[str, Callable[[], Any]] = {
    "an update without a message": lambda: Command(update={"foo": "new"}),
    "an update with an empty list": lambda: Command(update={"messages": []}),
    "an update with a message for another call": lambda: Command(update={"messages": [message("other")]}),
    "a goto and an update without a message": lambda: Command(update={"foo": "new"}, goto="other"),
    "a removal beside another message": lambda: Command(update={"messages": [clear(), HumanMessage("h")]}),
    "a list of messages for a dict state": lambda: Command(update=[message()]),
    "a list of commands without a message": lambda: [Command(update={"foo": "a"}), Command(goto="other")],
    "a list with the message in two commands": lambda: [
        Command(update={"messages": [message()]}),
        Command(update={"messages": [message()]}),
    ],
    "a list with the message beside a command that holds it": lambda: [
        message(),
        Command(update={"messages": [message()]}),
    ],
}


LIST_COMMANDS: dict[str, Callable[[], Any]] = {
    "a list update with its message": lambda: Command(update=[message()]),
    "a list update and a goto": lambda: Command(update=[message()], goto="other"),
    "a goto alone": lambda: Command(goto="other"),
    "a removal of all messages": lambda: Command(update=[clear()]),
    "a list with a message and a goto": lambda: [message(), Command(goto="other")],
}


@alike
def test_commands_and_plain_results_are_returned_side_by_side(ns: Any) -> Case:
    tools = [
        gives("one", lambda: Command(update={"foo": "new", "messages": [message("1")]})),
        gives("two", lambda: "plain"),
        gives("three", lambda: [message("3"), Command(update={"count": 3})]),
    ]
    calls = asks(call("one", id="1"), call("two", id="2"), call("three", id="3"))
    return Case(ns.ToolNode(tools), {"messages": [calls]})


@alike
def test_commands_and_plain_results_are_lists_for_a_list_state(ns: Any) -> Case:
    tools = [gives("one", lambda: Command(update=[message("1")])), gives("two", lambda: "plain")]
    return Case(ns.ToolNode(tools), [asks(call("one", id="1"), call("two", id="2"))], state=MessageList)


PARENT: dict[str, Callable[[], Any]] = {
    "an update without a message": lambda: Command(graph=Command.PARENT, update={"foo": "up"}),
    "an update and a goto": lambda: Command(graph=Command.PARENT, update={"messages": [message()]}, goto="other"),
    "a send": lambda: Command(graph=Command.PARENT, goto=[Send("other", {"foo": "sent"})]),
    "a goto name": lambda: Command(graph=Command.PARENT, goto="other"),
}


def node_scenario(make: Callable[[], Any], input: Any, *, send: bool = False, seed: Any = None, **options: Any) -> Any:
    return lambda ns: Case(ns.ToolNode([gives("give", make)], **options), input, send=send, seed=seed or {})


COMMANDS: dict[str, Any] = {
    **{f"{label} for a dict state": single(make) for label, make in DICT_COMMANDS.items()},
    **{f"{label} for a dict state": (single(make), "ValueError") for label, make in REFUSED.items()},
    **{f"{label} for a list state": single(make, as_list=True) for label, make in LIST_COMMANDS.items()},
    **{
        f"a wrong update for a list state, {label}": (
            single(lambda update=update: Command(update=update), as_list=True),  # type: ignore[misc]
            "ValueError",
        )
        for label, update in (("dict", {"messages": [message()]}), ("empty", []), ("foreign", [message("other")]))
    },
    **{f"{label} for the parent graph": single(make, parent=True) for label, make in PARENT.items()},
    "a refused command that is handled": node_scenario(
        REFUSED["an update without a message"], wants("give"), handle_tool_errors=True
    ),
    "a dict update for a list of calls": node_scenario(
        DICT_COMMANDS["an update with its message"], [call("give")], send=True, seed={"foo": "bar"}
    ),
    "no message for a list of calls, with the list example": (
        node_scenario(lambda: Command(update={"foo": "x"}), [call("give")], send=True),
        "ValueError",
    ),
}
test_a_command_is_obeyed_or_refused_alike = table_test(COMMANDS)

CHAT = {"chat": [asks(call("give"))]}
test_a_message_counts_under_the_messages_key_only = table_test(
    {
        "chat": node_scenario(lambda: Command(update={"chat": [message()]}), CHAT, messages_key="chat"),
        "messages": (
            node_scenario(lambda: Command(update={"messages": [message()]}), CHAT, messages_key="chat"),
            "ValueError",
        ),
    },
    modes=DIRECT_MODES,
)


@alike
def test_sends_to_the_parent_are_combined_into_one_command(ns: Any) -> Case:
    tools = [
        gives("one", lambda: Command(graph=Command.PARENT, goto=[Send("other", {"foo": "1"})])),
        gives("two", lambda: Command(graph=Command.PARENT, goto=[Send("other", {"foo": "2"})])),
    ]
    calls = asks(call("one", id="1"), call("two", id="2"))
    return Case(ns.ToolNode(tools), {"messages": [calls]}, parent=True)


@alike(modes=DIRECT_MODES)
def test_combined_sends_to_the_parent_drop_their_updates_and_stand_last(ns: Any) -> Case:
    up = {"graph": Command.PARENT, "update": {"foo": "up"}}
    tools = [
        gives("one", lambda: Command(**up, goto=[Send("other", {"foo": "1"})])),
        gives("two", lambda: "plain"),
        gives("three", lambda: Command(**up, goto=["other"])),
        gives("four", lambda: Command(graph=Command.PARENT, update={"foo": "only"})),
    ]
    calls = asks(*(call(tool.name, id=tool.name) for tool in tools))
    return Case(ns.ToolNode(tools), {"messages": [calls]})


@alike
def test_a_returned_command_is_not_changed(ns: Any) -> Case:
    command = Command(update={"messages": [ToolMessage("d", tool_call_id="call-1", id="m")]})
    return single(lambda: command, log=[command])(ns)  # type: ignore[no-any-return]
