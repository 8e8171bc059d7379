"""Start and end of a run: its input, its thread, its answers, its observers and its time limit.

The input is new messages, answers to questions, a LangGraph `Command`, or `None` to resume the thread.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from anyio.lowlevel import checkpoint
from langchain_core.messages import HumanMessage, ToolCall
from langchain_core.runnables import RunnableConfig
from langgraph.errors import EmptyInputError, ErrorCode, InvalidUpdateError, create_error_message
from langgraph.runtime import RunControl, Runtime
from langgraph.store.base import BaseStore
from langgraph.types import Command

from callboard._calls._call import create_batch_context, current_call
from callboard._calls._draining import InFlight, Operation
from callboard._calls._observers import current_observers
from callboard._langchain._errors import is_control_flow
from callboard._langgraph._node_scope import Outer, outer_of, with_stream, write_nothing, writer_of_run
from callboard._langgraph._outer_task import runtime_of
from callboard._loops._deadline import DEFAULT_GRACE, TimeLimit, TimeLimits, active_time_limits
from callboard._loops._entry_mode import EntryMode, entered_from
from callboard._loops._side_tasks import SideTask
from callboard._util._suggestions import did_you_mean
from callboard.agent._background import BackgroundCalls, ThreadBackground
from callboard.agent._inbox import Inbox, Letter, attend
from callboard.agent._live import LiveRuns
from callboard.agent._run import Run
from callboard.agent._run_context import AgentPlan, Breakpoints, RunContext
from callboard.agent._run_events import report_run, trace_agent
from callboard.agent._stream import Chunk, ChunkQueue, Keys, Reader, RunStream, handlers_for, printing
from callboard.conversations._actor_states import ActorJournal
from callboard.conversations._channels import MESSAGES, Flow, State, Write
from callboard.conversations._langgraph_threads import open_calls
from callboard.conversations._saved_thread import Durability, SavedThread
from callboard.conversations._saver import Saver
from callboard.conversations._snapshots import writes_of_finished_tasks
from callboard.conversations._storage import Source
from callboard.conversations._targets import END, TOOLS, Target, admit_targets, check_sends, split_targets
from callboard.conversations._thread import START, Thread
from callboard.exceptions import (
    CallRejectedError,
    OpenCallsError,
    RunDeadlineExceededError,
    StorageError,
    ThreadBusyError,
)
from callboard.tools._background import lost_notification, open_handles
from callboard.tools._bounds import find_broken_text
from callboard.tools._ledger import Answers, answers_by_id, approval_digest_in, is_by_id
from callboard.tools._unanswered import id_of


async def apply_input(input: Any, thread: Thread, flow: Flow) -> tuple[Answers, bool]:
    """Apply the input of a run to its thread; return the answers by interrupt id, and whether the run resumes."""
    check_input(input, thread)
    if START in thread.next and (input is None or isinstance(input, Command)):
        # The thread stands where earlier input had arrived: resuming applies that input, new input replaces it.
        await thread.amend(thread.writes_of_tasks([START]), lambda: [flow.entry], "loop")
    elif (input is None or isinstance(input, Command)) and isinstance(thread, SavedThread):
        await thread.prepare()
        next_targets: list[Target] = [*thread.next, *(send.send for send in thread.sends)]
        # An approval is valid only in the branch that asked: a person is asked again about the calls of a new branch.
        if (
            thread.source == "fork"
            and (admitted_targets := admit_targets(flow, None, next_targets, thread.state)) != next_targets
        ):
            await thread.amend([], lambda: admitted_targets, "command")
    if isinstance(input, Command):
        return await _take_command(input, thread, flow)
    if input is None:
        return {}, True
    values = input if isinstance(input, dict) else dict(thread.schema.writes_of(input))
    writes = thread.schema.writes_of_input(values)
    if input and not writes:
        raise _empty_input_error(input)  # LangGraph would begin a turn, as for `{}`, and ignore what was given
    unread = [*thread.unread]
    # New input gives up questions, also those about background calls of an ended process.
    handles = open_handles(thread.state.get(MESSAGES) or []) if thread.questions else {}
    given_up = [lost_notification(*call) for call in handles.items() if thread.record_of(call[0]).pending]
    if unread or given_up:
        # Messages that an earlier run has received and not read are older than the input.
        writes = [(MESSAGES, [*unread, *given_up]), *writes]
    if thread.records or TOOLS in thread.next_nodes:
        thread.not_begun = _find_calls_not_begun(thread, flow)
        thread.begun = frozenset(id_of(call) for key, call in open_calls(thread) if thread.record_of(key).claimed)
        # Finished tasks of the interrupted step keep their results, although new input does not resume it.
        writes = [*writes_of_finished_tasks(thread), *writes]
    await thread.amend(writes, lambda: [flow.entry], "input", read=unread)
    return {}, False


def _calls_of_unfinished_step(thread: Thread) -> Sequence[ToolCall]:
    """Return the calls of a reply that is stored as the result of a node, before the end of the node's step."""
    if TOOLS in thread.next_nodes or not (writes := writes_of_finished_tasks(thread)):
        return ()
    before, after = (state.get(MESSAGES) or [] for state in (thread.state, thread.state.with_writes(writes)))
    earlier_calls = thread.schema.flow.open_calls(before)
    return [call for call in thread.schema.flow.open_calls(after) if call not in earlier_calls]


def _find_calls_not_begun(thread: Thread, flow: Flow) -> frozenset[str]:
    """Return the ids of open calls that certainly have not begun."""
    if calls_of_step := _calls_of_unfinished_step(thread):
        return frozenset(map(id_of, calls_of_step))
    calls = open_calls(thread)
    approval_node = flow.approval_node(None, TOOLS, [call for _, call in calls], thread.state)
    # A hook after the model asks about all calls of a reply.
    if thread.is_before_step or thread.next == (approval_node,):
        return frozenset(id_of(call) for _, call in calls)
    calls_and_records = ((call, thread.record_of(key)) for key, call in calls)
    return frozenset(
        id_of(call)
        for call, record in calls_and_records
        # The question of an approval has a digest. A call with an earlier answer may have begun.
        if record.own and not record.answers and approval_digest_in(record.pending[0].value) is not None
    )


async def _take_command(command: "Command[Any]", thread: Thread, flow: Flow) -> tuple[Answers, bool]:
    if command.resume is not None and not thread.is_kept:
        raise RuntimeError("Cannot use Command(resume=...) without checkpointer")
    if (text := find_broken_text(command.resume)) is not None:
        # After a crash, the answer would be read as another text, and a call run that nobody has approved.
        raise ValueError(f"The answer has {text[:80]!r}, with half of a surrogate pair, which no database can store")
    if isinstance(thread, SavedThread) and command.resume is not None:
        thread.check_storable("an answer", command.resume)
    writes = thread.schema.writes_of(Command(update=command.update)) if command.update else []
    goto_targets: Any = command.goto if isinstance(command.goto, (list, tuple)) else [command.goto]
    goto = [target for target in goto_targets if target]
    check_sends(goto, flow.nodes, MESSAGES)
    if unknown := [node for node in map(str, split_targets(goto)[0]) if node not in (*flow.nodes, END)]:
        suggestion = did_you_mean(unknown[0], flow.nodes)
        raise InvalidUpdateError(f"Node {unknown[0]} does not exist; there are {', '.join(flow.nodes)}{suggestion}")
    if command.resume is None and not writes and not goto:
        raise EmptyInputError("Received empty Command input")
    is_stopped = bool(thread.next_nodes) and not thread.questions and not thread.has_unattributed_questions
    answers: Answers = {}
    if command.resume is not None and (not is_stopped or is_by_id(command.resume)):
        # Of a thread that stopped without a question, any other value only resumes the run.
        answers = answers_by_id(command.resume, thread.questions)
    if writes or goto:
        # A command on a new thread is its first input.
        has_next_targets = bool(goto) or not thread.has_begun
        next_targets: list[Target] = [target for target in goto if target != END] if goto else [flow.entry]
        if split_targets(goto)[1] and not thread.has_begun:
            next_targets = [*next_targets, flow.entry]
        state = thread.state.with_writes(writes)
        if not has_next_targets and (has_next_targets := _must_ask_again(thread, flow, writes, state)):
            next_targets = [*thread.next, *(send.send for send in thread.sends)]
        next_targets = admit_targets(flow, None, next_targets, state)
        finished = writes_of_finished_tasks(thread) if has_next_targets else []
        source: Source = "command" if thread.has_begun else "update"
        await thread.amend([*finished, *writes], (lambda: next_targets) if has_next_targets else None, source)
    return answers, True


def _must_ask_again(thread: Thread, flow: Flow, writes: Sequence[Write], state: State) -> bool:
    """Return whether a command changes calls that a person was asked about; `state` includes the command's writes."""
    before, after = (flow.open_calls(each_state.get(MESSAGES) or []) for each_state in (thread.state, state))
    if any(call not in before for call in after):
        return bool(thread.questions) or flow.approval_node(None, TOOLS, after, state) is not None
    values_by_key = dict(writes)
    # Private keys, which no input may set: middleware may keep edits of calls there.
    is_private = len(thread.schema.writes_of_input(values_by_key)) < len(values_by_key)
    return is_private and flow.approval_node(None, TOOLS, after, state) is not None


def check_input(input: object, thread: Thread) -> None:
    """Raise LangGraph's error, with a remedy, if a run cannot begin with an input; the thread is not changed."""
    if input is None and not thread.has_begun and START not in thread.next:
        raise _empty_input_error(input)
    if isinstance(input, str):
        suggestion = f"{{'messages': [('user', {input!r})]}}"
    elif isinstance(input, (list, tuple)):
        suggestion = "{'messages': [...]}"
    else:
        if input is not None and not isinstance(input, (dict, Command)):
            thread.schema.writes_of(input)
        return
    message = f"Expected dict, got {input}; an agent starts from a state with messages: {suggestion}"
    raise InvalidUpdateError(
        create_error_message(message=message, error_code=ErrorCode.INVALID_GRAPH_NODE_RETURN_VALUE)
    )


async def _refuse_open_calls(thread: Thread) -> None:
    """Raise `OpenCallsError` if new input would give up questions, or calls without a result.

    Raise `ThreadBusyError` if the calls are those of a live run.
    """
    is_open = thread.questions or thread.has_unattributed_questions or TOOLS in thread.next_nodes
    is_open = is_open or bool(_calls_of_unfinished_step(thread))
    if is_open and isinstance(thread, SavedThread):
        await thread.refuse_if_held()
        raise OpenCallsError(thread.saver.thread_id, thread.questions)


def _empty_input_error(input: object) -> EmptyInputError:
    return EmptyInputError(f"An agent starts from messages, as in {{'messages': [('user', 'hi')]}}; got {input!r}")


Put = Callable[[Chunk], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Input and options of one run; see `RunOptions`."""

    input: Any
    config: RunnableConfig
    """Config of the run, merged with the agent's config and with all defaults."""
    context: Any
    breakpoints: Breakpoints
    durability: Durability | None
    """Durability of the run; `None` for the durability of the outer graph, or "async" without one."""
    control: RunControl | None
    """Control object of the run; `None` for the control object of the outer graph, or a new one."""
    budget: float | None
    modes: frozenset[str]
    entry_mode: EntryMode
    subgraphs: bool
    message_events: bool
    """`True` if the stream mode "messages" has the events of each message's parts; see `wants_message_events`."""
    prints: frozenset[str]
    output_keys: Keys | None
    gives_up_calls: bool = True
    """`False` if the run must not begin while questions, or calls without a result, are open in the thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """Objects that all runs of an agent share, and the function that starts a run."""

    plan: AgentPlan
    name: str
    store: BaseStore | None
    context_schema: type[Any] | None
    debug: bool
    in_flight: InFlight
    """Runs that are in progress, which `drain` waits for."""
    live_runs: LiveRuns
    """Runs that take messages."""
    background_calls: BackgroundCalls
    """Calls that go on after their step."""

    async def run(
        self, checkpointer: Any, request: Request, outbox: ChunkQueue | None, inbox: Inbox | None = None
    ) -> Run:
        """Run the agent until its model answers, or a person has to be asked; return the ended run.

        `outbox` is the queue of the run's stream, or `None`. `inbox` is the inbox of a started run; other runs get
        theirs here.
        """
        tools, thread_id = self.plan.tools, request.config["configurable"].get("thread_id")
        with (
            entered_from(request.entry_mode),
            Operation(self.in_flight, grace=tools.grace, thread_id=thread_id) as operation,
        ):
            await self.live_runs.wait_for_update(str(thread_id))
            # Read once: LangGraph counts the graphs that a task runs.
            outer = outer_of(request.config)
            with self._admit(checkpointer, request.config, outer, inbox) as run_inbox:
                if not tools.actors.is_needed:
                    return await self._run(checkpointer, request, outer, outbox, run_inbox)
                async with tools.actors.open_for_block():
                    return await self._run(checkpointer, request, outer, outbox, run_inbox)
        raise operation.drain_error()

    async def _run(
        self, checkpointer: Any, request: Request, outer: Outer | None, outbox: ChunkQueue | None, inbox: Inbox | None
    ) -> Run:
        put: Put | None = None if outbox is None else outbox.put
        put = printing(put, request.prints) if request.prints else put
        config = request.config
        if config["recursion_limit"] < 1:
            raise ValueError("recursion_limit must be at least 1")
        if checkpointer is True:
            if outer is None:
                raise RuntimeError("checkpointer=True cannot be used for root graphs.")
            outer = outer.for_all_visits
        if put is not None and request.subgraphs:
            config = with_stream(config, put, request.modes)
            request = replace(request, config=config)
        saver = saver_for(checkpointer, config, outer)
        durability = request.durability or (outer and outer.durability) or "async"
        path = () if outer is None else outer.path
        thread = await open_thread(self.plan, saver, config, outer, durability)
        # A resumed outer graph passes its input again. Before the thread is held, which is a change of it.
        continues_input = outer is not None and outer.is_resuming and thread.has_begun
        # Unless the process died before it was applied: then the thread has only the input of an earlier call.
        if isinstance(thread, SavedThread) and thread.parents and thread.parents != thread.saver.parents:
            continues_input = False
        observers = current_observers().runs
        report_context = report_run(observers, self.name, config, thread, request.input) if observers else nullcontext()
        with report_context as reporter:
            if outer is None and thread.is_kept:
                # Before the input is applied, and outside of the `try`: `stop` would write to another run's thread. New
                # input is always stored before the first step, so it shares the write.
                check_input(request.input, thread)
                if not request.gives_up_calls:
                    # The hold fails if another run has changed the thread since it was opened.
                    await _refuse_open_calls(thread)
                resumes = request.input is None or isinstance(request.input, Command)
                await thread.hold(counts_as_step=resumes, joins_next_write=not resumes)
            elif checkpointer is True and outer is not None and isinstance(thread, SavedThread):
                await self._hold_for_call(thread, continues_input=continues_input)
            try:
                unread = [*thread.unread]
                run = await self._start_run(thread, saver, request, put, outer, continues_input=continues_input)
                if reporter is not None and not thread.unread:
                    reporter.report_messages(unread, "input")
                run.context.reporter, run.stream.outbox, run.context.inbox = reporter, outbox, inbox
                if inbox is not None and isinstance(thread, SavedThread):
                    inbox.open()
                    run.context.background = self._background_of(thread)
                handlers: list[Any] = []
                if put is not None:
                    handlers = handlers_for(
                        request.modes, put, path, subgraphs=request.subgraphs, events=request.message_events
                    )
                go = run.go if request.budget is None else partial(_run_within_budget, request.budget, run)
                run.context.attendance = (
                    SideTask(partial(attend, thread, inbox)) if inbox is not None or thread.is_held else None
                )
                # The renewal of the lease ends with the run and before `stop`, which gives the thread up.
                async with (
                    self._with_states(thread),
                    run.context.attendance or nullcontext(),
                    self._own_background_calls(inbox, config),
                ):
                    await trace_agent(go, request.input, config, self.name, handlers)
            finally:
                if thread.is_kept:
                    # Also after a cancellation: the saver's writes then go on within the grace.
                    await _stop(thread, inbox)
        return run

    def _admit(
        self, checkpointer: Any, config: RunnableConfig, outer: Outer | None, inbox: Inbox | None
    ) -> AbstractContextManager[Inbox | None]:
        """Return a context with the inbox of a run; a run in a graph, or without a stored thread, takes no messages."""
        if inbox is not None or outer is not None or saver_for(checkpointer, config, None) is None:
            return nullcontext(inbox)
        return self.live_runs.admit(str(config["configurable"]["thread_id"]))

    def _background_of(self, thread: SavedThread) -> ThreadBackground | None:
        """Return the background calls of a run's thread; `None` for a run within a call, with which its calls end."""
        if current_call() is not None:
            return None
        saver, takes_calls = thread.saver, not self.in_flight.is_draining
        store = partial(self._store_message, saver)
        return ThreadBackground(self.background_calls, saver.thread_id, store, saver.unstorable, takes_calls)

    def _own_background_calls(self, inbox: Inbox | None, config: RunnableConfig) -> AbstractAsyncContextManager[None]:
        """Return a context at whose end the background calls of a run end, unless the agent's block owns them."""
        if inbox is None:
            return nullcontext()
        return self.background_calls.belonging_to_run(str(config["configurable"]["thread_id"]), inbox)

    async def _store_message(self, saver: Saver, message: HumanMessage) -> None:
        """Store a message in a thread without a live run, unless it is there; the next run reads it.

        Results of other calls that come meanwhile are stored, too: to read the thread for each of them would take long.
        """
        letter = Letter(message)
        with self.live_runs.update(saver.thread_id) as inbox:
            inbox.put(letter)
            await checkpoint()  # other calls may end in the same moment
            thread = SavedThread(self.plan.schema, saver, "sync")
            await thread.open(None)
            known_ids = {message.id for message in (*(thread.state.get(MESSAGES) or []), *thread.unread)}
            await thread.hold(joins_next_write=True)
            try:
                while not inbox.close_if_empty():
                    await inbox.store_letters(thread, known_ids)
            finally:
                await _stop(thread, inbox)
        await letter.wait()

    async def _hold_for_call(self, thread: SavedThread, *, continues_input: bool) -> None:
        """Take the thread of an agent that continues one conversation in all tasks of the outer graph."""
        try:
            # Input for the calls of this step would take the place of the question that one of them has asked.
            if thread.questions and not continues_input and thread.parents == thread.saver.parents:
                raise ThreadBusyError(thread.saver.thread_id, "a call that waits for a person")
            await thread.hold()
        except ThreadBusyError as error:
            reason = (
                "its conversation is in use by another call, and takes one call after the other; without "
                "checkpointer=True, each call has a conversation of its own"
            )
            raise CallRejectedError(self.name, None, reason) from error

    def _with_states(self, thread: Thread) -> AbstractAsyncContextManager[None]:
        """Return a context in which actors with `snapshots="journal"` store their states in the thread."""
        actors = self.plan.tools.actors
        if not actors.in_journal:
            return nullcontext()
        if isinstance(thread, SavedThread):
            return actors.store_in(ActorJournal(thread.saver, thread.actor_states, thread.pending_actor_states))
        raise ValueError(
            f"the actor {actors.in_journal[0]} has snapshots='journal', and this run of the agent {self.name!r} has no "
            "checkpointer: create_react_agent(..., checkpointer='sqlite:///agent.db'), within a graph "
            "compile(checkpointer=...); or have its state in a store: child(..., snapshots=InMemorySnapshots())"
        )

    async def _start_run(
        self,
        thread: Thread,
        saver: Any,
        request: Request,
        put: Put | None,
        outer: Outer | None,
        *,
        continues_input: bool,
    ) -> Run:
        """Apply the input to the thread, unless it goes on with earlier input, and return the run at its position."""
        answers: Answers
        if outer is not None and continues_input:
            answers, is_resumed = outer.answers([question.id for question in thread.questions]), True
        else:
            answers, is_resumed = await apply_input(request.input, thread, self.plan.flow)
        path = () if outer is None else outer.path
        readers = [] if put is None else [Reader(request.modes, path, put)]
        if outer is not None and outer.stream is not None:
            readers.append(Reader(outer.stream.modes, path, outer.stream))
        # Values that the run lacks come from the outer graph.
        outer_runtime = runtime_of(request.config)
        context_value, schema = request.context, self.context_schema
        if isinstance(context_value, dict) and schema is not None and not issubclass(schema, dict):
            context_value = schema(**context_value)
        own_values: dict[str, Any] = {
            "context": context_value,
            "store": self.store,
            "control": request.control or outer_runtime.control or RunControl(),
        }
        if put is not None and "custom" in request.modes:
            own_values["stream_writer"] = writer_of_run(put)
        elif outer is not None and outer.stream is None:
            own_values["stream_writer"] = write_nothing  # the outer stream was opened without nested graphs
        run_context = RunContext(
            self.plan,
            thread,
            request.config,
            outer_runtime.merge(Runtime(**own_values)),
            RunStream(readers, self.plan.schema, request.output_keys, request.config, lambda: thread.step + 1),
            answers=answers,
            breakpoints=request.breakpoints,
            is_resumed=is_resumed,
            outer=outer,
            checkpointer=saver,
        )
        return Run(run_context)


async def _stop(thread: Thread, inbox: Inbox | None) -> None:
    """Store the end of a run, and tell the senders of its last messages whether these are stored."""
    if inbox is None:
        await thread.stop()
        return
    inbox.close()
    error: Exception | None = StorageError("The database", "may have lost a message: read the thread")
    try:
        await thread.stop()
        error = thread.loss
    except Exception as stop_error:
        error = stop_error
        raise
    finally:
        inbox.settle(error)


async def _run_within_budget(budget: float, run: Run, config: RunnableConfig) -> dict[str, Any]:
    """Run an agent and return its state for the caller; raise `RunDeadlineExceededError` after `budget` seconds."""
    batch_context = create_batch_context()
    deadline = batch_context.now + budget
    # The earlier of two deadlines: tools and nested agents read their remaining time from it.
    token = active_time_limits.set(TimeLimits(batch_context.loop, min(deadline, batch_context.until), DEFAULT_GRACE))
    try:
        with (limit := TimeLimit(batch_context.loop.scope(deadline, DEFAULT_GRACE), is_control_flow)):
            return await run.go(config)
    finally:
        active_time_limits.reset(token)
    # Reached only if the limit cancelled the run. The open calls get their messages outside of the cancelled scope.
    error = RunDeadlineExceededError(budget)
    await run.give_up(str(error))
    raise error from limit.cause


def saver_for(checkpointer: Any, config: RunnableConfig, outer: Outer | None) -> Any:
    """Return the checkpointer of a run: the outer graph's if a graph runs the agent, else the agent's; or `None`."""
    if checkpointer is False:
        return None
    saver = checkpointer if outer is None else outer.checkpointer
    if saver is None or saver is True:
        return None
    if "thread_id" not in config["configurable"]:
        raise ValueError(
            "Checkpointer requires one or more of the following 'configurable' keys: thread_id, checkpoint_ns, "
            "checkpoint_id; name the conversation: config={'configurable': {'thread_id': '1'}}"
        )
    named: object = config["configurable"]["thread_id"]
    if isinstance(named, (list, tuple, dict, set, frozenset, bytes, bytearray)):
        raise TypeError(f"thread_id is a text or a number, and names the conversation; got {named!r:.80}")
    thread_id = str(named)
    try:
        thread_id.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"thread_id {thread_id!r} has half of a surrogate pair, which no database stores: give whole characters"
        ) from error
    return saver


async def open_thread(
    plan: AgentPlan,
    saver: Any,
    config: RunnableConfig,
    outer: Outer | None,
    durability: Durability,
    *,
    for_reading: bool = False,
) -> Thread:
    """Return the thread that a config names, loaded from the checkpointer `saver`; without one, a thread in memory."""
    namespace = "" if outer is None else outer.namespace
    if saver is None:
        return Thread(plan.schema, namespace=namespace)
    conf = config["configurable"]
    thread_saver = Saver(saver, str(conf["thread_id"]), namespace or conf.get("checkpoint_ns", ""), config)
    thread = SavedThread(plan.schema, thread_saver, durability)
    await thread.open(conf.get("checkpoint_id"), for_reading=for_reading)
    return thread
