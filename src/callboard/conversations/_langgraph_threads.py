"""Unfinished steps in LangGraph's stored form, so that callboard can continue a thread that waits under LangGraph.

The next nodes are channels `branch:to:<node>`. The calls to run are LangGraph sends in a channel of their own, without
the state. LangGraph has written the results of a call under the id of the call's task.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import ToolCall
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.types import Command, Interrupt, Send

from callboard._langgraph._node_scope import INTERRUPT, PULL, PUSH, RESUME, TASKS, task_id_of
from callboard.conversations._channels import MESSAGES
from callboard.conversations._storage import BRANCH, SENDS, Asked, Entry, Finished, notes_of
from callboard.conversations._stored_types import drop_untracked_of_send
from callboard.conversations._targets import AFTER, AGENT, BEFORE, MODEL, TOOLS, NumberedSend, number_sends
from callboard.conversations._thread import START, Thread
from callboard.tools._call_record import EMPTY_RECORD, CallRecord, keys_of
from callboard.tools._unanswered import answers_to, id_of


def open_calls(thread: Thread) -> list[tuple[str, ToolCall]]:
    """Return the calls of the last reply that still have to run, each with its key, in the order of the reply."""
    calls = thread.schema.flow.open_calls(thread.state.get(MESSAGES) or [])
    return list(zip(keys_of(calls), calls, strict=True))


def next_node_channels(thread: Thread) -> dict[str, Any]:
    if START in thread.next:
        return {START: thread.records[START].output}
    # The tools node has no such channel: sends run it.
    nodes = [node for node in thread.next if node != TOOLS]
    names = [name for node in nodes for name in (node, *thread.schema.flow.aliases(node))]
    channels: dict[str, Any] = {BRANCH + name: None for name in names}
    sends: list[Send] = [drop_untracked_of_send(send.send, thread.schema) for send in thread.sends]
    if TOOLS in thread.next:
        sends += [Send(TOOLS, [call]) for _, call in open_calls(thread)]
    if TOOLS in thread.next or sends:
        channels[TASKS] = sends
    return channels


def entries_of_records(records: Mapping[str, CallRecord]) -> list[Entry]:
    """Convert records of an unfinished step's tasks to journal entries (results, questions) for a new checkpoint."""
    finished: list[Entry] = [
        Finished(task, record.output)
        for task, record in records.items()
        if record.is_finished and task != START  # the input is in the checkpoint itself
    ]
    unfinished = {task: record for task, record in records.items() if not record.is_finished}
    return [*finished, Asked(unfinished)] if unfinished else finished


def _pull_task_id(thread: Thread, checkpoint_id: str, node: str) -> str:
    """Return LangGraph's id of the task that runs a node with the state as its input."""
    return task_id_of(checkpoint_id, thread.namespace, thread.step + 1, node, PULL, f"{BRANCH}{node}")


def read_next_nodes(thread: Thread, checkpoint_tuple: CheckpointTuple) -> None:
    """Read a thread's next nodes, `Send` objects and task records from a checkpoint of callboard or LangGraph."""
    values = checkpoint_tuple.checkpoint["channel_values"]
    due = [name.removeprefix(BRANCH) for name in values if name.startswith(BRANCH) and _is_due(checkpoint_tuple, name)]
    branches = [node for name in due if (node := _own_node(thread, name))]
    if START in values:
        thread.next, thread.records = (START,), {START: CallRecord(output=values[START])}  # not applied yet
        return
    calls = _read_sends(thread, checkpoint_tuple)
    thread.next = tuple(dict.fromkeys([*branches, TOOLS] if calls else branches))
    if calls:
        keys_by_id: dict[str, list[str]] = {}
        for key, open_call in open_calls(thread):
            keys_by_id.setdefault(id_of(open_call), []).append(key)
        for number, send in calls:
            if (call := _call_in(send)) is not None and (keys := keys_by_id.get(id_of(call))):
                key = keys.pop(0)  # calls with the same id have their sends in call order
                writes = _read_push_writes(thread, checkpoint_tuple, TOOLS, number)
                thread.records |= _records_of(thread, writes, [(key, call)])
    elif TOOLS in thread.next:
        # One task of LangGraph ran all calls, and its writes do not name their call. With several open calls, only that
        # one of them asks a question is known.
        batch = open_calls(thread)
        writes = _writes(checkpoint_tuple, _pull_task_id(thread, checkpoint_tuple.checkpoint["id"], TOOLS))
        thread.records |= _records_of(thread, writes, batch)
        thread.has_unattributed_questions = len(batch) != 1 and any(channel == INTERRUPT for channel, _ in writes)
    for node in branches:
        if node != TOOLS:
            task_id = _pull_task_id(thread, checkpoint_tuple.checkpoint["id"], node)
            thread.records[node] = _record_of(_writes(checkpoint_tuple, task_id))


def _own_node(thread: Thread, name: str) -> str | None:
    if name in thread.schema.nodes:
        return name
    if name in (MODEL, AGENT, BEFORE) or name.endswith(".before_model"):
        return thread.schema.flow.turn_entry
    if name.endswith(".before_agent"):
        return thread.schema.flow.entry
    if (name == AFTER or name.endswith(".after_model")) and open_calls(thread):
        return TOOLS
    return None


def _is_due(checkpoint_tuple: CheckpointTuple, channel: str) -> bool:
    """Return whether the node of a channel `branch:to:<node>` has not run since the last write to this channel."""
    checkpoint = checkpoint_tuple.checkpoint
    node = channel.removeprefix(BRANCH)
    seen_version: Any = checkpoint["versions_seen"].get(node, {}).get(channel)
    versions: Mapping[str, Any] = checkpoint["channel_versions"]
    version: Any = versions.get(channel)
    if version is None:  # there is nothing to compare
        return True
    has_new_write = seen_version is None or bool(version > seen_version)
    # An agent does not empty channels that it does not know, so only channels of the latest version are due.
    return has_new_write and bool(version == max(versions.values()))


IndexedSends = list[tuple[int, Send]]
"""LangGraph sends, each with its index in their channel; the index is part of LangGraph's task id."""


def _read_sends(thread: Thread, checkpoint_tuple: CheckpointTuple) -> IndexedSends:
    """Return the `Send`s of a LangGraph checkpoint that are calls of a model reply; store the others in `thread`."""
    # LangGraph sends each call of a reply to the tools node. callboard runs these calls as one batch, so they are not
    # among the sends of the thread.
    sends = checkpoint_tuple.checkpoint["channel_values"].get(TASKS) or ()
    numbered_sends: IndexedSends = [
        (number, send)
        for number, send in enumerate(sends)
        if isinstance(send, Send) and send.node in thread.schema.flow.nodes
    ]
    call_ids = {(call["name"], id_of(call)) for _, call in open_calls(thread)}  # there may be very many
    send_count: int | None = notes_of(checkpoint_tuple.checkpoint).get(SENDS)
    if send_count is not None:
        calls = [(number, send) for number, send in numbered_sends if number >= send_count]
    else:
        calls = [
            (number, send)
            for number, send in numbered_sends
            if send.node == TOOLS and (call := _call_in(send)) is not None and (call["name"], id_of(call)) in call_ids
        ]
    call_numbers = {number for number, _ in calls}
    other_sends = [numbered_send for numbered_send in numbered_sends if numbered_send[0] not in call_numbers]
    thread.sends = number_sends(send for _, send in other_sends)
    for (number, _), numbered_send in zip(other_sends, thread.sends, strict=True):
        _read_sent(thread, _read_push_writes(thread, checkpoint_tuple, numbered_send.node, number), numbered_send)
    return calls


def _read_sent(thread: Thread, writes: Sequence[tuple[str, Any]], send: NumberedSend) -> None:
    if send.node != TOOLS:
        if output := {channel: value for channel, value in writes if channel in thread.schema.specs}:
            thread.records[send.task] = CallRecord(output=output)
        return
    messages = thread.state.get(MESSAGES) or []
    if send.task in send.tasks(messages, MESSAGES):
        return  # the input has no calls
    calls = send.request(messages, MESSAGES).calls
    thread.records |= _records_of(
        thread, writes, [(send.task_of(key), call) for key, call in zip(keys_of(calls), calls, strict=True)]
    )


def _call_in(send: Send) -> ToolCall | None:
    """Return the single call in the input of a `Send`, in either of LangGraph's forms; otherwise `None`."""
    arg: Any = send.arg
    if isinstance(arg, list) and len(arg) == 1:
        arg = arg[0]
    elif isinstance(arg, dict):
        arg = arg.get("tool_call", arg)
    return cast("ToolCall", arg) if isinstance(arg, dict) and "name" in arg else None


def _read_push_writes(
    thread: Thread, checkpoint_tuple: CheckpointTuple, node: str, number: int
) -> list[tuple[str, Any]]:
    """Return the stored writes of the task of a LangGraph `Send`; `number` is the index of the send."""
    return _writes(
        checkpoint_tuple,
        task_id_of(checkpoint_tuple.checkpoint["id"], thread.namespace, thread.step + 1, node, PUSH, str(number)),
    )


def _writes(checkpoint_tuple: CheckpointTuple, task_id: str) -> list[tuple[str, Any]]:
    return [(channel, value) for task, channel, value in checkpoint_tuple.pending_writes or () if task == task_id]


def _records_of(
    thread: Thread, writes: Sequence[tuple[str, Any]], calls: Sequence[tuple[str, ToolCall]]
) -> dict[str, CallRecord]:
    """Return the records of the calls of one LangGraph task, by key, from the task's writes."""
    updates = [(channel, value) for channel, value in writes if channel in thread.schema.specs]
    if not updates:
        return {calls[0][0]: _record_of(writes)} if len(calls) == 1 else {}
    # The task has finished: LangGraph writes the results of its calls together, commands as changes of the state.
    messages = [message for channel, value in updates if channel == MESSAGES for message in _as_list(value)]
    records: dict[str, CallRecord] = {}
    for key, call in reversed(calls[1:]):
        if own_answers := answers_to(call, messages):
            # Calls with the same id have their messages in call order.
            records[key] = CallRecord(output=own_answers[-1])
            messages = [message for message in messages if message is not own_answers[-1]]
    outputs = [record.output for record in records.values()]
    # It is not known which call changed the state, and the first one gets all changes.
    changes = [
        (channel, [item for item in _as_list(value) if not any(item is answer for answer in outputs)])
        if channel == MESSAGES
        else (channel, value)
        for channel, value in updates
    ]
    gotos = [value for channel, value in writes if channel == TASKS]
    for channel, _ in writes:
        node = _own_node(thread, channel.removeprefix(BRANCH)) if channel.startswith(BRANCH) else None
        if node not in (None, thread.schema.flow.turn_entry):  # the edge of the tools node leads to that one
            gotos.append(node)
    output: object = Command(update=changes, goto=gotos)
    if not gotos and len(changes) == len(messages) == 1 and answers_to(calls[0][1], messages):
        output = messages[0]
    return {calls[0][0]: CallRecord(output=output), **records}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _record_of(writes: Sequence[tuple[str, Any]]) -> CallRecord:
    """Return the record of a task that has not finished, from LangGraph's writes: its questions and answers."""
    record = EMPTY_RECORD
    for channel, value in writes:
        if channel == INTERRUPT:
            pending: Sequence[Interrupt] = value if isinstance(value, (list, tuple)) else [value]
            record = record._replace(pending=tuple(pending), own=True)
        elif channel == RESUME:
            record = record._replace(answers=tuple(value) if isinstance(value, list) else (value,))
    return record
