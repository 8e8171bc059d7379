"""State and history of a conversation thread for users, and changes of its state outside of a run."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

from langchain_core.messages import AIMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, CheckpointTuple
from langgraph.errors import InvalidUpdateError
from langgraph.types import Interrupt, PregelTask, StateSnapshot

from callboard._langgraph._node_scope import PULL, PUSH, task_id_of
from callboard.conversations._channels import MESSAGES, Flow, State, Write
from callboard.conversations._langgraph_threads import open_calls
from callboard.conversations._positions import read_whole
from callboard.conversations._saved_thread import SavedThread
from callboard.conversations._storage import FIRST_ID, Move, as_input_entry, entries_of, reading_stored_data
from callboard.conversations._targets import END, TOOLS, Target, admit_targets
from callboard.conversations._thread import START, Thread
from callboard.tools._background import open_handles
from callboard.tools._call_record import keys_of

COPY = "__copy__"
"""Node name that LangGraph reserves: an update of the state with this node name copies the current position."""

Questions = Mapping[str, Sequence[Interrupt]]
"""Questions to people, by the name of the task that asked them."""


def snapshot_of(thread: SavedThread, *, by_call: bool, past: bool = False) -> StateSnapshot:
    """Return LangGraph's snapshot of a thread at its current position."""
    if not thread.has_position:
        return StateSnapshot({}, (), thread.config, None, None, None, (), ())
    questions: Questions = {task: record.pending for task, record in thread.records.items() if record.pending}
    if past:
        questions = {**thread.questions_of_step, **questions}  # answered questions, too
    messages = thread.state.get(MESSAGES) or []
    tasks = (
        *(
            _task(thread, send.node, send.tasks(messages, MESSAGES), questions, (PUSH, send.number, False))
            for send in thread.sends
        ),
        *(task for node in thread.next for task in _tasks(thread, node, questions, by_call=by_call)),
    )
    # A background call of an ended process, about which a person is asked, is no task of the next step.
    handles = open_handles(messages) if questions else ()
    tasks += tuple(
        _task(thread, TOOLS, [handle], questions, (PUSH, number, False))
        for number, handle in enumerate(handles, len(tasks))
        if handle in questions
    )
    # With `past`, the position is shown as it was before its tasks finished, as in histories.
    shows_finished = by_call and not past and bool(thread.records)
    state = thread.state.with_writes(writes_of_finished_tasks(thread)) if shows_finished else thread.state
    return StateSnapshot(
        values=state.read(thread.schema.values),
        # All tasks may have finished without the end of the step, which follows when the thread is resumed.
        next=tuple(task.name for task in tasks if past or not task.result) or thread.next_nodes,
        config=_with_parents(thread, thread.config),
        metadata=cast(
            "CheckpointMetadata",
            {**thread.user_metadata, "source": thread.source, "step": thread.step, "parents": thread.parents},
        ),
        created_at=thread.ts,
        parent_config=None if thread.parent_config is None else _with_parents(thread, thread.parent_config),
        tasks=tasks,
        interrupts=tuple(question for task in tasks for question in task.interrupts),
    )


def _with_parents(thread: SavedThread, config: RunnableConfig) -> RunnableConfig:
    """Return the config of a position with the checkpoints of the outer graphs, by which LangGraph finds them."""
    conf = config["configurable"]
    if not thread.parents or "checkpoint_id" not in conf:
        return config
    checkpoints = {**thread.parents, conf["checkpoint_ns"]: conf["checkpoint_id"]}
    return {"configurable": {**conf, "checkpoint_map": checkpoints}}


def _tasks(thread: Thread, node: str, questions: Questions, *, by_call: bool) -> list[PregelTask]:
    if node != TOOLS:
        return [_task(thread, node, [node], questions, (PULL, node))]
    calls = [key for key, _ in open_calls(thread)]
    if not by_call:
        return [_task(thread, node, calls, questions, (PULL, node))]
    return [
        _task(thread, node, [key], questions, (PUSH, number, False))
        for number, key in enumerate(calls, len(thread.sends))
    ]


def _task(thread: Thread, node: str, keys: Sequence[str], questions: Questions, path: tuple[Any, ...]) -> PregelTask:
    trigger = START if node == START else f"branch:to:{node}"
    qualifier = str(path[1]) if path[0] == PUSH else trigger
    checkpoint_id, step = thread.origin
    records = [thread.record_of(key) for key in keys]
    is_finished = bool(records) and all(record.is_finished for record in records)
    return PregelTask(
        task_id_of(checkpoint_id, thread.namespace, step + 1, node, path[0], qualifier),
        node,
        path,
        cast("Any", next((record.error for record in records if record.error is not None), None)),
        tuple(question for key in keys for question in questions.get(key, ())),
        None,
        dict(thread.writes_of_tasks(keys)) if is_finished else None,
    )


async def history_of(
    thread: SavedThread, *, filter: Mapping[str, Any] | None, before: str | None, limit: int | None, by_call: bool
) -> AsyncGenerator[StateSnapshot]:
    """Yield a snapshot of each position of a thread, the latest first; `thread` itself moves to these positions."""
    remaining = limit
    newer_id: str | None = None
    newer_tuples: dict[str, CheckpointTuple] = {}
    for checkpoint_tuple in await thread.saver.before(None, None):
        complete = await read_whole(thread.saver, thread.schema, checkpoint_tuple, newer_tuples)
        # Only the newer neighbour is kept: a thin checkpoint refers to the next one, and whole histories are large.
        newer_tuples = {checkpoint_tuple.checkpoint["id"]: complete}
        with reading_stored_data(thread.saver.describe(complete)):
            snapshots = _snapshots_on_checkpoint(thread, complete, by_call=by_call)
        for snapshot in reversed(snapshots):
            checkpoint_id = snapshot.config["configurable"]["checkpoint_id"]
            # A checkpoint at the end of a turn has the id of the last entry before it: one position, not two.
            metadata: Mapping[str, Any] = snapshot.metadata or {}
            fits = all(metadata.get(key) == value for key, value in (filter or {}).items())
            if checkpoint_id == newer_id or (before is not None and checkpoint_id >= before) or not fits:
                continue
            if remaining is not None:
                if remaining <= 0:
                    return
                remaining -= 1
            newer_id = checkpoint_id
            yield snapshot


def _snapshots_on_checkpoint(
    thread: SavedThread, checkpoint_tuple: CheckpointTuple, *, by_call: bool
) -> list[StateSnapshot]:
    """Return snapshots of the position of a checkpoint, and of all positions to which its journal entries lead."""
    thread.play(checkpoint_tuple, [])
    take_snapshot = partial(snapshot_of, thread, by_call=by_call, past=True)
    snapshots = [take_snapshot()]
    for entry in entries_of(checkpoint_tuple):
        arrival = as_input_entry(entry)
        if arrival is not None and (arrival.received is not None or thread.checkpoint_id == FIRST_ID):
            thread.receive(arrival)
            if thread.checkpoint_id == FIRST_ID:
                snapshots.pop()
            snapshots.append(take_snapshot())
        thread.apply_entry(entry)
        # Entries of tasks do not move the thread; they complete the snapshot of the current position.
        if not isinstance(entry, Move):
            snapshots.pop()
        snapshots.append(take_snapshot())
    return snapshots


async def update(thread: SavedThread, flow: Flow, values: Any, as_node: str | None) -> RunnableConfig:
    """Change the state of a thread while no run uses it; return the config of the new position."""
    if as_node == COPY:
        return await _copy(thread, flow, values)
    node = as_node or _last_node(thread, flow)
    if node not in (*flow.nodes, START, END):
        raise InvalidUpdateError(f"Node {node} does not exist; there are {', '.join(flow.nodes)}")
    new_writes = thread.schema.writes_of(values)
    # Results of finished tasks are kept, whichever node comes next.
    writes = [*writes_of_finished_tasks(thread), *new_writes]
    state = thread.state.with_writes(writes)
    waiting_tasks = [task for task, record in thread.records.items() if record.pending]
    closed_tasks = _find_closed_tasks(waiting_tasks, flow, thread.state, state)
    # An update that leaves a question open does not end the step that waits for its answer.
    is_waiting = len(closed_tasks) < len(waiting_tasks) and not thread.sends
    if is_waiting and as_node is None:
        next_targets = admit_targets(flow, None, thread.next, state)
    else:
        next_targets = _targets_after(state, flow, node, new_writes)
    if is_waiting and (*next_targets,) == thread.next:
        await thread.update(new_writes, None, closed_tasks)
    else:
        await thread.update(writes, next_targets)
    return thread.config


def _find_closed_tasks(waiting_tasks: Sequence[str], flow: Flow, before: State, after: State) -> list[str]:
    """Return the tasks whose questions are no longer open if the state changes: their calls are others, or answered."""
    calls_before, calls = _calls_by_key(flow, before), _calls_by_key(flow, after)
    # The question of a node may be about all calls of the reply.
    return [
        task
        for task in waiting_tasks
        if (calls.get(task) != calls_before[task] if task in calls_before else calls != calls_before)
    ]


def _calls_by_key(flow: Flow, state: State) -> dict[str, ToolCall]:
    calls = flow.open_calls(state.get(MESSAGES) or [])
    return dict(zip(keys_of(calls), calls, strict=True))


async def _copy(thread: SavedThread, flow: Flow, values: Any) -> RunnableConfig:
    """Store a copy of the thread's current position with updates, and return the config of the copy."""
    if not thread.exists:
        raise InvalidUpdateError("Cannot copy a non-existent checkpoint")
    if not isinstance(values, (list, tuple)) and values is not None:
        raise InvalidUpdateError(f"A copy takes None, or a list of (values, as_node) to change it by; got {values!r}")
    await thread.copy()
    for new_values, as_node in (item[:2] for item in values or ()):
        await update(thread, flow, new_values, as_node)
    return thread.config


def _targets_after(state: State, flow: Flow, node: str, writes: Sequence[Write]) -> list[Target]:
    messages = state.get(MESSAGES) or []
    if node == START:
        return [flow.entry]
    if node == END:
        # After the end nothing runs, except the model if it has not seen the last message.
        unseen = messages and not isinstance(messages[-1], AIMessage)
        return [flow.entry] if unseen and any(name == MESSAGES for name, _ in writes) else []
    next_node = flow.next_node(node, state)
    # From outside: an update is no approval, also if it is attributed to the node that asks for one.
    return [] if next_node == END else admit_targets(flow, None, [next_node], state)


def _last_node(thread: Thread, flow: Flow) -> str:
    """Return the name of the node that ran last, inferred from the last message."""
    messages = thread.state.get(MESSAGES) or []
    if not messages or isinstance(messages[-1], HumanMessage):
        return START
    if isinstance(messages[-1], ToolMessage):
        return TOOLS
    return flow.reply_node


def writes_of_finished_tasks(thread: Thread) -> list[tuple[str, Any]]:
    """Return the writes of the finished tasks of a thread's unfinished step."""
    if not thread.records:
        return []
    # The writes of calls are in the order of the reply.
    calls = [*thread.tasks_of_sends(), *(key for key, _ in open_calls(thread))]
    tasks = [task for task in thread.records if task != START]
    writes: list[tuple[str, Any]] = []
    for task in sorted(tasks, key=lambda task: calls.index(task) if task in calls else -1):
        candidate = [*writes, *thread.writes_of_tasks([task])]
        with suppress(InvalidUpdateError):  # conflicts with another task, so it ended the step
            thread.state.with_writes(candidate)
            writes = candidate
    return writes
