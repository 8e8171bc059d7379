"""The middle of a turn as LangGraph's own agents store it, so that either can go on where the other stopped.

The nodes that come next are channels `branch:to:<node>`; calls that are to run are sends in a channel of their own,
without the state. What a call has done is written under the id that LangGraph would give to its task.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.types import Interrupt, Send

from callboard._langgraph._place import INTERRUPT, PUSH, RESUME, TASKS, task_id_of
from callboard.agent._checkpoint import BRANCH, MESSAGES, Base
from callboard.agent._flow import AGENT, START, TOOLS
from callboard.agent._thread import Entry, Record, Thread
from callboard.tools._batch import keys_of
from callboard.tools._input import parse_input


def open_calls(thread: Thread) -> list[tuple[str, ToolCall]]:
    """The calls that the conversation has no result for, in the order in which they were asked for, by name."""
    messages = thread.state.get(MESSAGES) or []
    if not any(isinstance(message, AIMessage) for message in messages):
        return []
    calls = parse_input({MESSAGES: messages}, MESSAGES).calls
    return list(zip(keys_of(calls), calls, strict=True))


def coming(thread: Thread) -> dict[str, Any]:
    """What comes next, as channels of LangGraph's."""
    channels: dict[str, Any] = {BRANCH + node: None for node in thread.next if node != TOOLS}
    if TOOLS in thread.next:
        channels[TASKS] = [Send(TOOLS, [call]) for _, call in open_calls(thread)]
    return channels


def kept_records(records: Mapping[str, Record]) -> list[Entry]:
    """Entries that say what is known of the tasks that come next."""
    finished: list[Entry] = [
        {"kind": "task", "task": task, "output": record["output"]}
        for task, record in records.items()
        if "output" in record
    ]
    others = {task: record for task, record in records.items() if "output" not in record}
    return [*finished, {"kind": "asked", "records": others}] if others else finished


def writes_for_langgraph(thread: Thread, base: Base) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """What calls have done, by the task that LangGraph would have run them in."""
    for number, (key, _) in enumerate(open_calls(thread)):
        record = thread.records.get(key, {})
        task_id = task_id_of(base.id, thread.namespace, thread.step + 1, TOOLS, PUSH, str(number))
        if "output" in record:
            yield task_id, [*thread.written([key]), (f"{BRANCH}{AGENT}", None)]
        elif record.get("pending"):
            yield task_id, [(INTERRUPT, list(record["pending"]))]


def read_coming(thread: Thread, found: CheckpointTuple) -> None:
    """Take over what a checkpoint says of the steps that come next, whoever wrote it."""
    values = found.checkpoint["channel_values"]
    branches = [name.removeprefix(BRANCH) for name in values if name.startswith(BRANCH) and _is_due(found, name)]
    sends: Sequence[Any] = [send for send in values.get(TASKS) or () if isinstance(send, Send) and send.node == TOOLS]
    if START in values:
        # LangGraph had taken the input in, and nothing else.
        thread.state.apply(thread.schema.writes_of(values[START]))
        thread.next = (thread.schema.entry,)
    elif sends:
        thread.next = (TOOLS,)
        _read_calls(thread, found, sends)
    else:
        thread.next = tuple(branches)


def _is_due(found: CheckpointTuple, channel: str) -> bool:
    """Whether a node has not yet run for what its channel says."""
    checkpoint = found.checkpoint
    seen = checkpoint["versions_seen"].get(channel.removeprefix(BRANCH), {}).get(channel)
    version: Any = checkpoint["channel_versions"].get(channel)
    return seen is None or version is None or version > seen


def _read_calls(thread: Thread, found: CheckpointTuple, sends: Sequence[Send]) -> None:
    names = {call["id"]: key for key, call in open_calls(thread)}
    for number, send in enumerate(sends):
        call = send.arg[0] if isinstance(send.arg, list) else send.arg.get("tool_call", send.arg)
        key = names.get(call["id"])
        if key is None:
            continue
        task_id = task_id_of(found.checkpoint["id"], thread.namespace, thread.step + 1, TOOLS, PUSH, str(number))
        writes = [(channel, value) for task, channel, value in found.pending_writes or () if task == task_id]
        if record := _record_of(writes, call["id"]):
            thread.records[key] = record


def _record_of(writes: Sequence[tuple[str, Any]], call_id: str | None) -> Record:
    """What LangGraph knows of a call."""
    record: Record = {}
    for channel, value in writes:
        if channel == MESSAGES:
            messages = value if isinstance(value, list) else [value]
            own = [m for m in messages if isinstance(m, ToolMessage) and m.tool_call_id == call_id]
            if own:
                return {"output": own[0]}
        elif channel == INTERRUPT:
            pending: Sequence[Interrupt] = value if isinstance(value, (list, tuple)) else [value]
            record |= {"pending": list(pending), "own": True}
        elif channel == RESUME:
            record["answers"] = list(value) if isinstance(value, list) else [value]
    return record
