"""Ledger of a batch of calls: answers of people, open questions and results, from which a later run continues.

In a LangGraph task, the ledger is one element of the task's resume list, the list that `interrupt()` uses. LangGraph
stores this list when a task is interrupted; callboard also stores it after each finished call. Outside of a graph, the
caller keeps the ledger, or keeps the records itself, as an agent's thread does. The stored form has plain dicts and
LangGraph types only, so any serializer can store it.

Answers are matched to open questions by LangGraph's rules.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeGuard

from anyio.lowlevel import checkpoint
from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import GraphInterrupt, UnknownInterruptError
from langgraph.types import Command, Interrupt, interrupt

from callboard._langchain._unknown_outcomes import OutcomeUnknown, unknown_text
from callboard._langgraph._call_scope import (
    CALL_PREFIX,
    PLACEHOLDER_ID,
    RESUME,
    CallScratchpad,
    GraphNames,
    call_config,
    is_interrupt_id,
    name_of_run,
    namespace_of_calls,
    question_id,
    scope_of,
    with_answers,
)
from callboard._langgraph._outer_task import GraphTask, graph_task, is_graph_node
from callboard.questions import approval_in
from callboard.tools._call_record import EMPTY_RECORD, CallRecord, are_plain, segment_of

# Answers


Answers = Mapping[str, Any]
"""Answers of persons, by the interrupt id of the question."""


class AmbiguousAnswerError(UnknownInterruptError, RuntimeError):
    """Raised for one answer without an interrupt id while several questions are open.

    LangGraph raises either base class in this case.
    """

    def __init__(self, pending: Sequence[str]) -> None:
        super().__init__(
            "When there are multiple pending interrupts, you must specify the interrupt id when resuming: "
            f"{{interrupt.id: answer}} for any of them; open are {list(pending)}",
            reason="ambiguous",
            pending_ids=pending,
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.pending_ids,)


def is_by_id(resume: object) -> TypeGuard[Answers]:
    """Return whether a resume value is a dict of answers by interrupt id. Any other value is a single answer."""
    return isinstance(resume, dict) and all(isinstance(key, str) and is_interrupt_id(key) for key in resume)


def answers_by_id(resume: object, questions: Sequence[Interrupt]) -> Answers:
    """Return the answers in a resume value, by interrupt id; raise UnknownInterruptError for an unknown question."""
    pending = sorted({question.id for question in questions})
    if is_by_id(resume):
        if unknown := sorted(resume.keys() - set(pending)):
            raise UnknownInterruptError(
                f"Unknown or already-consumed interrupt: {unknown[0]}; open are {pending}",
                reason="not_pending",
                interrupt_ids=unknown,
                pending_ids=pending,
            )
        return resume
    if len(pending) > 1:
        # Never guess: an approval that reaches the wrong call would run a call that nobody approved.
        raise AmbiguousAnswerError(pending)
    if not pending:
        raise UnknownInterruptError(
            f"No question is open, so there is nothing that {resume!r} could answer; calls that have not run ask "
            "again when they are run without an answer",
            reason="not_pending",
        )
    return {pending[0]: resume}


# Ledger


FORMAT = "callboard/1"


def approval_digest_in(question: object) -> str | None:
    """Return the digest that a question contains; its answer is valid only for this digest. `None` without a digest."""
    if isinstance(question, list) and len(question) == 1 and isinstance(question[0], dict):
        digest = question[0].get("digest")
        return digest if isinstance(digest, str) else None
    return None


class _ResumeEntry(dict[str, Any]):
    """Ledger of a batch as an entry of LangGraph's list of resume values. Serializers store it as a plain dict."""

    attempt: int


class Ledger:
    """Records of a batch's calls (answers, open questions, results), with methods that load, update and store them.

    The caller may keep the whole ledger of an earlier run (`caller_ledger`, always up to date), or keep and store the
    `records` itself. `answers` are for runs outside of a graph. Raises UnknownInterruptError if one matches no open
    question.
    """

    def __init__(
        self,
        config: RunnableConfig,
        node: str,
        keys: Sequence[str],
        *,
        caller_ledger: Mapping[str, Any] | None = None,
        records: Mapping[str, CallRecord] | None = None,
        answers: object = None,
        namespaces: Mapping[str, str] | None = None,
        graphs: GraphNames | None = None,
    ) -> None:
        self._namespaces = namespaces
        self.graphs = graphs
        self._conf = config["configurable"]
        self._keys = list(keys)
        self._are_plain = are_plain(keys)
        self._run: str | None = None if caller_ledger is None else caller_ledger.get("run")
        self._prefix = namespace_of_calls(self._conf) if self._conf else CALL_PREFIX
        self._is_in_resume_list = False
        self._resume_index = 0
        self._earlier_batches = 0  # batches of this run with the same keys before this one; part of the namespace
        # Both belong to `save`: at most one write runs; a call that finishes meanwhile only requests another one.
        self._is_saving = self._has_unsaved = False
        self.records: dict[str, CallRecord] = {}
        self.writes: dict[str, list[tuple[str, Any]]] = {}
        self.task_results: dict[str, dict[int, Any]] = {}
        self._stored: dict[str, dict[str, Any]] = {}
        """Encoded form of `records`, always up to date; encoding all of them for each result would take long."""
        self._caller_ledger: dict[str, Any] | None = None
        self._is_node = self.may_be_replayed = False
        """`may_be_replayed`: a question of later code may make the graph run the node again after this batch."""
        self._answers_without_id: list[Any] = []
        self._answers: Answers = {}
        stored, task = caller_ledger, graph_task(config) if self._conf else None
        self._task = task
        if task is None:
            self.outer_scratchpad, self.forward = None, None
            self._caller_ledger = caller_ledger if isinstance(caller_ledger, dict) else None
            self.stores_each_result = self._caller_ledger is not None
            """`True` if the result of each finished call must be stored before the batch ends."""
        else:
            self.outer_scratchpad, self.forward = task.scratchpad, task.send
            self._is_node = is_graph_node(config, node)
            self.may_be_replayed = not self._is_node
            self.stores_each_result = task.durable
            stored = self._find_in_resume_list(task.scratchpad.resume)
            # LangGraph's own `ToolNode` leaves answers without a call id in the task: they are clear for a single call.
            if stored is None and self._is_node and len(self._keys) == 1:
                self._answers_without_id = [*task.scratchpad.resume]
                if (answer := task.take_plain_answer()) is not None:
                    self._answers_without_id.append(answer)
        if stored or records:
            self._load(stored, records or {})
        if task is not None and task.resume_map is not None:
            self._answers = task.resume_map
        elif task is not None:
            pending = self.pending
            if len(pending) == 1 and (answer := task.take_plain_answer()) is not None:
                self._answers = {pending[0].id: answer}
        elif answers is not None:
            self._answers = answers_by_id(answers, self.pending)
        self._call_conf = with_answers(self._conf, self._answers) if self._answers else self._conf

    def _load(self, stored: Mapping[str, Any] | None, records: Mapping[str, CallRecord]) -> None:
        """Load the records that earlier runs have made: from a stored ledger, or else from the caller's `records`."""
        if stored:
            # Only the keys identify the calls: with the ledger of another input, its results would count as theirs.
            if stored.get("format") != FORMAT or stored.get("keys") != self._keys:
                raise ValueError(
                    f"The ledger is of the calls {stored.get('keys')!r}, and not of {self._keys!r}: "
                    "hand it in with the input that it came from"
                )
            records = {key: CallRecord.decode(record) for key, record in stored["calls"].items()}
        for key, record in records.items():
            self._set_record(key, record)

    def _set_record(self, key: str, record: CallRecord) -> None:
        self.records[key] = record
        self._stored[key] = record.encode()

    def record_of(self, key: str) -> CallRecord:
        """Return the stored record of a call; an empty record if nothing is stored about the call."""
        return self.records.get(key, EMPTY_RECORD)

    def _find_in_resume_list(self, resume: Sequence[Any]) -> Mapping[str, Any] | None:
        assert self._task is not None
        for position, value in enumerate(resume):
            if isinstance(value, dict) and value.get("format") == FORMAT and value["keys"] == self._keys:
                if isinstance(value, _ResumeEntry) and value.attempt == self._task.attempt:
                    self._earlier_batches += 1  # of another batch of this run, whose model used the same ids
                    continue
                # As `interrupt()` does when it finds its answer: count the position, and write the list up to here.
                # Without this write, the next interrupt would store only the answers before this position.
                self._task.scratchpad.interrupt_counter()
                self._task.send([(RESUME, list(resume[: position + 1]))])
                self._put_in_resume_list(position, value)
                return value
        return None

    def _put_in_resume_list(self, position: int, ledger: Mapping[str, Any]) -> None:
        assert self._task is not None
        slot = _ResumeEntry(ledger)
        slot.attempt = self._task.attempt
        self._task.scratchpad.resume[position : position + 1] = [slot]
        self._resume_index, self._is_in_resume_list, self.may_be_replayed = position, True, True

    @property
    def in_graph(self) -> bool:
        return self._task is not None

    @property
    def pending(self) -> list[Interrupt]:
        """Open questions of all calls of the batch, in call order."""
        return [question for key in self._keys for question in self.record_of(key).pending]

    def is_waiting(self, key: str) -> bool:
        """Return whether a call has open questions, none of which this run answers. Such a call does not run."""
        pending = self.record_of(key).pending
        return bool(pending) and not any(question.id in self._answers for question in pending)

    @property
    def run(self) -> str:
        """Unique name of this run of the batch, made at the first access, because most batches never need it."""
        if not self._run:
            self._run = name_of_run(self._conf, is_named=self._namespaces is not None)
        return self._run

    @property
    def thread_id(self) -> object:
        """Conversation of the batch; `None` without one."""
        return self._conf.get("thread_id")

    def config_of_call(self, key: str, config: RunnableConfig, *, is_node: bool = False) -> RunnableConfig:
        """Return the LangGraph config for one call, or for a node, with what `interrupt()` needs in `configurable`."""
        namespace = self._namespace(key)
        if (record := self.records.get(key)) is None:
            scratchpad = CallScratchpad(self, key, namespace, self._answers_without_id or None)
        else:
            answers, question = [*record.answers], None
            if record.own and record.pending[0].id in self._answers:
                # Recorded only after `interrupt()` has accepted it.
                answers.append(self._answers[record.pending[0].id])
                question = record.pending[0].value
            digests = self._digests_for(record)
            scratchpad = CallScratchpad(self, key, namespace, answers, digests=digests, question=question)
            if record.tasks:
                self.task_results[key] = dict(record.tasks)
        return call_config(config, self._call_conf, scratchpad, is_node=is_node)

    def record_answers(self, key: str, answers: list[Any]) -> None:
        """Record the answers that `interrupt()` has returned to a call so far, and close a newly answered question."""
        record = self.record_of(key)
        earlier_answers = record.answers
        all_answers = (
            *(dict(a) if isinstance(a, _ResumeEntry) else a for a in answers),
            *earlier_answers[len(answers) :],
        )
        digests = self._digests_for(record)[: len(all_answers)]
        new_record = CallRecord(answers=all_answers, digests=tuple(digests) if any(digests) else (), tasks=record.tasks)
        if record.own and len(answers) <= len(earlier_answers):
            # The call runs again from its beginning and accepts earlier answers: its last question is still open.
            new_record = new_record._replace(pending=record.pending, own=True)
        self._set_record(key, new_record)

    def _namespace(self, key: str) -> str:
        if self._namespaces is not None:
            return self._namespaces[key]
        return self._prefix + (
            key if self._are_plain and not self._earlier_batches else segment_of(key, self._earlier_batches)
        )

    def _digests_for(self, record: CallRecord) -> list[str | None]:
        """Return, for each answer to a call, the digest of its question, or `None` if the question has none."""
        digests = list(record.digests)
        if record.own and (digest := approval_digest_in(record.pending[0].value)) is not None:
            # Digests are matched to answers by index: questions without a digest must keep their place.
            digests += [None] * (len(record.answers) - len(digests))
            digests.append(digest)
        return digests

    def record_question(self, key: str, interrupt: GraphInterrupt, mark: str | None = None) -> None:
        """Record the open questions of a call, together with an observer's text (`mark`), such as a trace id."""
        record = self.record_of(key)
        if isinstance(interrupt, OutcomeUnknown):
            # `claimed` makes `settle_unknown` read the answer: it decides about the call, and is no answer for its
            # body.
            new_record = record.with_answers_only()._replace(pending=interrupt.args[0], claimed=True)
            self._set_record(key, new_record if mark is None else new_record._replace(mark=mark))
            return
        name = question_id(self._namespace(key), len(record.answers))
        questions: Sequence[Interrupt] = interrupt.args[0] if interrupt.args else ()
        pending = tuple(replace(q, id=name) if q.id == PLACEHOLDER_ID else q for q in questions)
        is_own = len(pending) == 1 and pending[0].id == name
        tasks = tuple(self.task_results[key].items()) if key in self.task_results else record.tasks
        mark = record.mark if mark is None else mark
        self._set_record(key, record._replace(pending=pending, own=is_own, mark=mark, tasks=tasks))

    def settle_unknown(self, key: str, call: ToolCall) -> None:
        """Record a person's decision about a call with an unknown outcome, if the decision came with this run."""
        record = self.record_of(key)
        if not record.claimed or not record.pending or record.pending[0].id not in self._answers:
            return
        message = unknown_text(key, call, self._answers[record.pending[0].id])
        self._set_record(key, record.with_answers_only() if message is None else CallRecord(output=message))

    def record_output(self, key: str, output: object) -> None:
        """Record the result of a finished call; its questions are no longer open."""
        self._set_record(key, CallRecord(output=output))

    def record_parent_command(self, key: str, command: Command[Any]) -> None:
        """Record that a call ended with a command for the parent graph, in place of a result."""
        if command.graph == self._namespace(key):
            # For a graph inside the tool, the parent is the call's namespace. LangGraph knows only that of the task.
            outer_namespace = self._conf.get("checkpoint_ns")
            command = replace(command, graph=outer_namespace or Command.PARENT)
        self._set_record(key, CallRecord(parent=command))

    def dump(self) -> dict[str, Any]:
        """Return the ledger as a dict that any serializer can store."""
        run = {"run": self.run} if self._task is None else {}
        return {"format": FORMAT, "keys": self._keys, "calls": self._stored, **run}

    def pass_to_next_run(self) -> None:
        """Put the ledger into the caller's dict and into the task's resume list, where the next run finds it."""
        if self._caller_ledger is not None:
            self._caller_ledger.update(self.dump())
        if self._task is None or not self.records:
            return
        resume = self._task.scratchpad.resume
        if not self._is_in_resume_list:
            self._task.scratchpad.interrupt_counter()
        self._put_in_resume_list(self._resume_index if self._is_in_resume_list else len(resume), self.dump())
        self._task.send([(RESUME, resume)])

    async def save(self) -> None:
        """Store the ledger at once, so that it survives a kill of the process."""
        if self._caller_ledger is not None:
            self._caller_ledger.update(self.dump())
        if self._task is None:
            return
        self._has_unsaved = True
        # Calls that finish during a write share the next write.
        if self._is_saving:
            return
        self._is_saving = True
        # Shielded as a whole, because calls that have returned rely on it.
        await self._task.run_shielded(partial(self._write, self._task))

    async def _write(self, task: GraphTask) -> None:
        try:
            # Each write contains all results: one for each of a thousand calls would take more than a second.
            await checkpoint()
            # There is no await between the test and both resets, so no request is lost.
            while self._has_unsaved:
                self._has_unsaved = False
                resume = list(task.scratchpad.resume)
                # A copy: other calls change `_stored` while this write is serialized.
                dump = {**self.dump(), "calls": dict(self._stored)}
                if self._is_in_resume_list:
                    resume[self._resume_index] = dump
                else:
                    resume.append(dump)
                await task.save(resume)
        finally:
            self._is_saving = False


class CallsInterrupted(GraphInterrupt):
    """Raised by a `ToolNode` outside of a LangGraph graph if calls wait for a person's answer.

    `interrupts` are the open questions of all calls. Pass `ledger` back to `ToolNode.ainvoke`, together with the same
    input and the answers. It contains only plain dicts, messages and LangGraph types: any LangGraph serializer can
    store it.
    """

    def __init__(self, interrupts: Sequence[Interrupt], ledger: Mapping[str, object]) -> None:
        self.interrupts = tuple(interrupts)
        self.ledger = ledger
        super().__init__(self.interrupts)

    def __str__(self) -> str:
        # Without the questions themselves: the form of an answer takes kilobytes.
        texts: list[str] = []
        for question in self.interrupts:
            approval = approval_in(question)
            actions = (
                [f"{action.name}: {'/'.join(action.allowed)}" for action in approval.actions]
                if approval
                else ["answer"]
            )
            texts.append(f"{question.id} ({', '.join(actions)})")
        return f"calls wait for answers by id: {', '.join(texts)}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


# Questions of a tool's body


def can_ask() -> bool:
    """Return whether this code runs within a call of callboard's `ToolNode`, where `interrupt()` reaches a person."""
    return scope_of(var_child_runnable_config.get() or {}) is not None


def earlier_question(is_mine: Callable[[object], bool] | None = None) -> object:
    """Return the question that this call asked in an earlier run if its answer is known and unused; else `None`.

    An answered call runs again from its beginning. With its old question, the body can continue where it stopped: state
    that it needs for that can be part of the question, and is stored with it. The next `interrupt()` returns the
    answer. Answers to earlier questions are skipped.

    It is also `None` for a second attempt after the answer was taken, and after the process was killed since then.

    Args:
        is_mine: if several parts of a body ask, a function that returns whether the present part asked a question. If
            not, no answer is skipped, and the result is `None`.
    """
    scope = scope_of(var_child_runnable_config.get() or {})
    question = None if scope is None else scope.earlier_question()
    if scope is None or question is None or not (is_mine is None or is_mine(question)):
        return None
    while scope.count_unused_answers() > 1:
        interrupt(None)
    return question
