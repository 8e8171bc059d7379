"""Input and output of a node: the tool calls in an input, the valid results of calls, and the output for the graph."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from types import NoneType
from typing import Any, Literal, NamedTuple, cast
from uuid import UUID

from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, ToolCall, ToolMessage, convert_to_messages
from langgraph.types import Command, Send

from callboard._langchain._outputs import Item, Output
from callboard._langgraph._vocabulary import msg_content_output
from callboard.tools._unanswered import (
    answers_to,
    each_without_answer,
    id_of,
    last_reply,
    reply_index_of,
    without_answer,
)

# Input


InputKind = Literal["list", "dict", "tool_calls"]


class NodeRequest(NamedTuple):
    """Tool calls that an input of a node asks to run.

    A named tuple, because one is made for each batch, and a frozen dataclass takes several times as long to create.
    """

    calls: Sequence[ToolCall]
    """Calls that have no answer yet, and are to be run."""
    reply: Sequence[ToolCall]
    """All calls of the model's message that contains `calls`, or all calls of the input."""
    kind: InputKind
    """Form of the input, which decides the form of the output."""
    state: Any
    """State that the input contains; `None` if the state must be read from the graph."""


def parse_input(input: Any, messages_key: str) -> NodeRequest:
    """Return the tool calls of a node's input; raise ValueError for an input that is not valid."""
    if isinstance(input, dict) and input.get("__type") == "tool_call_with_context":
        state, call = input["state"], _normalize_call(input["tool_call"])
        open_calls = each_without_answer([call], messages_in(state, messages_key))
        return NodeRequest(open_calls, [call], "tool_calls", state)
    is_list = isinstance(input, list)
    messages: Sequence[Any] = input if is_list else messages_in(input, messages_key)
    if is_list and messages:
        if _are_calls(messages):
            return NodeRequest(messages, messages, "tool_calls", None)
        if _is_call(messages[-1]):
            calls = [*map(_normalize_call, messages)]
            return NodeRequest(calls, calls, "tool_calls", None)
    if not messages or isinstance(messages[-1], dict):
        if (mistake := _describe_wrong_input(input, messages_key)) is not None:
            raise ValueError(mistake)
        if not messages:
            raise ValueError("No message found in input")
    if (index := last_reply(messages)) is None:
        raise ValueError("No AIMessage found in input")
    reply = messages[index].tool_calls
    if not _are_calls(reply):
        reply = [*map(_normalize_call, reply)]
    answers = messages[index + 1 :]
    calls = without_answer(reply, answers) if answers else reply
    return NodeRequest(calls, reply, "list" if is_list else "dict", input)


def count_calls(input: Any, messages_key: str) -> int:
    """Return the number of calls, answered or not, that `parse_input` has to read in an input of a node."""
    messages: Sequence[Any] = input if isinstance(input, list) else messages_in(input, messages_key)
    if not messages or isinstance(messages[-1], dict):
        return len(messages)
    index = last_reply(messages)
    return 0 if index is None else len(messages[index].tool_calls)


def _is_call(item: object) -> bool:
    return isinstance(item, dict) and (item.get("type") == "tool_call" or {"name", "args"} <= item.keys())


def _describe_wrong_input(input: Any, messages_key: str) -> str | None:
    """Return an error text for an input in a known wrong form; `None` for any other input."""
    last: object = input[-1] if isinstance(input, list) and input else None
    if isinstance(input, str):
        example = f"{{{messages_key!r}: [AIMessage(...)]}} or [{{'name': ..., 'args': ..., 'id': ...}}]"
        return f"No message found in input: a node takes messages or tool calls, as in {example}; got {input!r}"
    if isinstance(input, AIMessage):
        return f"No message found in input: a message goes in a list, [message]; got {input!r}"
    if _is_call(input):
        return f"No message found in input: a tool call goes in a list, [call]; got {input!r}"
    if isinstance(last, dict) and {"name", "arguments"} <= last.keys():
        return f"No message found in input: the arguments of a tool call are under 'args', not 'arguments': {last!r}"
    if _is_openai_call(input) or _is_openai_call(last):
        return (
            "No message found in input: a tool call is a dict with name, args and id, {'name': ..., 'args': {...}, "
            f"'id': ...}}; OpenAI's form, with its function and a JSON text, is not one: {input!r}"
        )
    return None


def _is_openai_call(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("function"), dict)


def messages_in(state: Any, key: str) -> Sequence[Any]:
    """Return the messages of a state, which is a dict or an object; an empty sequence if it has none."""
    messages: Any = state.get(key) if isinstance(state, dict) else getattr(state, key, None)
    return messages or ()


def open_calls_and_reply(
    request: NodeRequest, state: Any, messages_key: str, *, is_counted: bool
) -> tuple[Sequence[ToolCall], Sequence[ToolCall]]:
    """Return the calls of a list that have no answer yet, and all calls of the model's reply that contains them."""
    calls, messages = request.calls, messages_in(state, messages_key)
    if request.state is None:
        calls = each_without_answer(calls, messages)
    # Only a limit on the calls of a reply needs the reply, which must be looked up in the state.
    if not is_counted:
        return calls, request.reply
    # LangGraph's `Send` delivers one call of a reply to the node.
    if len(calls) != 1 or (index := reply_index_of(calls[0], messages)) is None:
        return calls, calls
    reply = list(messages[index].tool_calls)
    # The same object as in `calls`: `admit_calls` finds surplus calls by identity.
    reply[[id_of(call) for call in reply].index(id_of(calls[0]))] = calls[0]
    return calls, reply


_IDS = (NoneType, int, float, UUID)
"""Types besides `str` that a `ToolMessage` accepts as a call id."""


def _are_calls(items: Sequence[Any]) -> bool:
    """Return whether all items are tool calls in normalized form. This test is much faster than `_normalize_call`."""
    for call in items:
        if type(call) is not dict or type(call.get("args")) is not dict:
            return False
        if type(call.get("id")) is not str or type(call.get("name")) is not str:
            return False
    return True


def _normalize_call(call: Any) -> ToolCall:
    """Return a tool call in normalized form; raise ValueError if it cannot be run and answered."""
    if not isinstance(call, Mapping):
        raise ValueError(f"A tool call is a dict with name, args and id, got {call!r}")
    if "id" in call and isinstance(call["id"], _IDS):
        call = {**call, "id": id_of(cast("ToolCall", call))}
    if "name" in call and not isinstance(call["name"], str):
        call = {**call, "name": str(call["name"])}  # no tool has this name, and the call's message will say so
    for key, kind in (("name", str), ("args", dict), ("id", str)):
        if not isinstance(call.get(key), kind):
            raise ValueError(f"Tool call {call!r} needs {key!r} to be a {kind.__name__}, got {call.get(key)!r}")
    return cast("ToolCall", call)


def tools_condition(state: Any, messages_key: str = "messages") -> Literal["tools", "__end__"]:
    """Return the next node of a graph: "tools" if the last message has tool calls, else "__end__".

    Args:
        state: a list of messages, or a dict or object that contains one.
        messages_key: name of the list in the state.

    Raises:
        ValueError: if there are no messages.
    """
    messages = state if isinstance(state, list) else messages_in(state, messages_key)
    if not messages:
        raise ValueError(f"No messages found in input state to tool_edge: {state}")
    return "tools" if getattr(messages[-1], "tool_calls", None) else "__end__"


# Output of a batch


REMOVE_ALL_MESSAGES = "__remove_all__"


class ResultRules(NamedTuple):
    """Rules for the outputs of calls, which depend on the form of the node's input."""

    kind: InputKind
    messages_key: str

    def check_response(self, response: object, call: ToolCall) -> Output:
        """Return a tool's response if it is a valid output of its call; raise TypeError or ValueError otherwise."""
        if isinstance(response, ToolMessage):
            if response.tool_call_id != call["id"]:
                raise ValueError(
                    f"Tool {call['name']} returned a message with tool_call_id {response.tool_call_id!r} for the call "
                    f"{call['id']!r}. Take the id from an argument annotated with InjectedToolCallId."
                )
            return response if type(response.content) is str else _normalize_content(response)
        if isinstance(response, Command):
            return self._check_command(response, call, needs_message=True)
        if isinstance(response, list):
            return self._check_list(response, call)
        raise TypeError(f"Tool {call['name']} returned unexpected type: {type(response)}")

    def _check_list(self, response: list[Any], call: ToolCall) -> Output:
        if not all(isinstance(item, (Command, ToolMessage)) for item in response):
            raise TypeError(
                f"Tool {call['name']} returned a list with invalid element types: expected all Command or ToolMessage"
            )
        answers = 0
        for item in response:
            answers += len(answers_to(call, [item] if isinstance(item, ToolMessage) else self._messages_of(item)))
        if answers != 1:
            raise ValueError(
                f"Tool {call['name']} returned a list with {answers} messages bound to tool_call_id "
                f"{call['id']!r}; expected exactly one terminating ToolMessage."
            )
        return [
            self._check_command(item, call, needs_message=False)
            if isinstance(item, Command)
            else _normalize_content(item)
            for item in response
        ]

    def _messages_of(self, command: Command[Any]) -> list[BaseMessage]:
        update: Any = command.update
        messages = update.get(self.messages_key, []) if isinstance(update, dict) else update or []
        return convert_to_messages(messages if isinstance(messages, (list, tuple)) else [messages])

    def _check_command(self, command: Command[Any], call: ToolCall, *, needs_message: bool) -> Command[Any]:
        if isinstance(command.update, dict):
            self._refuse_if(self.kind == "list", command, call, _DICT_UPDATE)
            # A copy, because `message.name` is set below: the tool may keep the object and return it again.
            command = deepcopy(command)
        elif isinstance(command.update, list):
            self._refuse_if(self.kind != "list", command, call, _LIST_UPDATE)
            command = deepcopy(command)
        else:
            return command
        messages = self._messages_of(command)
        if messages == [RemoveMessage(id=REMOVE_ALL_MESSAGES)]:
            return command
        answers = answers_to(call, messages)
        for message in answers:
            message.name = call["name"]
        # A command for another graph leaves this graph, so its history need not contain the answer.
        if needs_message and command.graph is None and not answers:
            example = (
                '`Command(update={"messages": [ToolMessage("Success", tool_call_id=tool_call_id), ...]}, ...)`'
                if self.kind == "dict"
                else '`Command(update=[ToolMessage("Success", tool_call_id=tool_call_id), ...], ...)`'
            )
            raise ValueError(
                f"Expected to have a matching ToolMessage in Command.update for tool '{call['name']}', got: "
                f"{messages}. Every tool call (LLM requesting to call a tool) in the message history MUST have a "
                f"corresponding ToolMessage. You can fix it by modifying the tool to return {example}."
            )
        return command

    def _refuse_if(self, is_refused: bool, command: Command[Any], call: ToolCall, rule: str) -> None:
        if is_refused:
            raise ValueError(f"{rule.format(key=self.messages_key)}, got: {command.update} for tool '{call['name']}'")

    def combine_outputs(self, outputs: Sequence[Output]) -> Any:
        """Return the outputs of all calls of a batch, in call order, in the form that fits the node's input."""
        flat: list[Item] = []
        has_commands = False
        for output in outputs:
            for item in output if isinstance(output, list) else (output,):
                flat.append(item)
                has_commands |= isinstance(item, Command)
        if not has_commands:
            return flat if self.kind == "list" else {self.messages_key: flat}
        results: list[Any] = []
        sends: list[Send] = []
        for item in flat:
            if not isinstance(item, Command):
                results.append([item] if self.kind == "list" else {self.messages_key: [item]})
                continue
            goto = item.goto
            if item.graph is Command.PARENT and isinstance(goto, list) and all(isinstance(s, Send) for s in goto):
                sends.extend(goto)
            else:
                results.append(item)
        if sends:
            results.append(Command(graph=Command.PARENT, goto=sends))
        return results


_DICT_UPDATE = "Tools can provide a dict in Command.update only when using dict with '{key}' key as ToolNode input"
_LIST_UPDATE = (
    "Tools can provide a list of messages in Command.update only when using list of messages as ToolNode input"
)


def _normalize_content(message: ToolMessage) -> ToolMessage:
    # Providers refuse an empty list.
    message.content = cast("Any", msg_content_output(message.content) or "[]")
    return message
