"""What a batch knows of its calls between two runs: answers accepted, questions open, results.

Inside a LangGraph task the ledger lives in the task's resume slot, in one position of the list that
`interrupt()` keeps there; LangGraph stores that slot when a task is interrupted, and we store it after
each finished call. Outside, the caller holds it, or keeps the records himself, as an agent's thread does. What is
stored has plain dicts and LangGraph types only, for any serializer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphInterrupt
from langgraph.types import Command, Interrupt

from callboard._langgraph import (
    PLACEHOLDER_ID,
    RESUME,
    CallScratchpad,
    GraphNames,
    call_configurable,
    call_namespace,
    graph_task,
    is_graph_node,
    name_of_run,
    question_id,
)
from callboard.tools._answers import answers_by_id
from callboard.tools._call_record import NOTHING_KNOWN, CallRecord
from callboard.tools._keys import segment_of
from callboard.tools._unknown_outcome import OutcomeUnknown, said_of

FORMAT = "callboard/1"


def digest_in(question: object) -> str | None:
    """The `digest` of the only request in a question: its answer is good for what has this digest."""
    if isinstance(question, list) and len(question) == 1 and isinstance(question[0], dict):
        digest = question[0].get("digest")
        return digest if isinstance(digest, str) else None
    return None


class _Slot(dict[str, Any]):
    """A ledger in the resume list that a batch of this run has taken; to a serializer it is a plain dict."""

    attempt: int


class MakesLedger(Protocol):
    """Makes the ledger of a batch, with what its caller has of an earlier run: `partial(Ledger, held=...)`."""

    def __call__(
        self, config: RunnableConfig, node: str, keys: Sequence[str], *, graphs: GraphNames | None = None
    ) -> "Ledger": ...


class Ledger:
    """The records of a batch, and where they are kept.

    Args:
        config: complete; says whether a LangGraph task runs us.
        node: the name of the tool node.
        keys: the batch's calls, in order.
        held: the ledger of an earlier run, where the caller holds it; kept up to date.
        records: by key, what the caller knows of the calls, who keeps it without our help.
        answers: by interrupt id, or one plain answer if one question is open; outside a graph only.
        namespaces: of the calls, where whoever runs the batch has given them.
        graphs: told of those that calls run.

    Raises:
        UnknownInterruptError: if an answer fits no open question.
    """

    def __init__(
        self,
        config: RunnableConfig,
        node: str,
        keys: Sequence[str],
        *,
        held: Mapping[str, Any] | None = None,
        records: Mapping[str, CallRecord] | None = None,
        answers: object = None,
        namespaces: Mapping[str, str] | None = None,
        graphs: GraphNames | None = None,
    ) -> None:
        self._namespaces = namespaces
        self._graphs = graphs
        self._conf = config["configurable"]
        self._keys = list(keys)
        self._task = graph_task(config)
        self._run = (held or {}).get("run") or name_of_run(self._conf, is_named=namespaces is not None)
        self._in_slot = False
        self._position = 0
        self._number = 0
        self._saving = self._unsaved = False
        self.records: dict[str, CallRecord] = {}
        self._stored: dict[str, dict[str, Any]] = {}
        """The same as plain dicts, always up to date: to make them anew for each result would take long."""
        self._held = held if self._task is None and isinstance(held, dict) else None
        self._is_node = is_graph_node(config, node)
        stored = held if self._task is None else self._find_in_slot(self._task.scratchpad.resume)
        self._bare = self._bare_answers() if stored is None else []
        self._know(stored, records or {})
        self._answers = self._answers_of_graph() if self._task is not None else self._answers_of_caller(answers)

    def _know(self, stored: Mapping[str, Any] | None, records: Mapping[str, CallRecord]) -> None:
        """Take over what is stored, or what the caller knows."""
        if stored:
            self._check(stored)
            records = {key: CallRecord.decode(record) for key, record in stored["calls"].items()}
        for key, record in records.items():
            self._note(key, record)

    def _note(self, key: str, record: CallRecord) -> None:
        self.records[key] = record
        self._stored[key] = record.encode()

    def known_of(self, key: str) -> CallRecord:
        """What the ledger knows of a call from earlier runs, if anything."""
        return self.records.get(key, NOTHING_KNOWN)

    def _check(self, stored: Mapping[str, Any]) -> None:
        if stored.get("format") != FORMAT or stored.get("keys") != self._keys:
            raise ValueError(
                f"The ledger is of the calls {stored.get('keys')!r}, and not of {self._keys!r}: "
                "hand it in with the input that it came from"
            )

    def _find_in_slot(self, resume: Sequence[Any]) -> Mapping[str, Any] | None:
        assert self._task is not None
        for position, value in enumerate(resume):
            if isinstance(value, dict) and value.get("format") == FORMAT and value["keys"] == self._keys:
                if isinstance(value, _Slot) and value.attempt == self._task.attempt:
                    self._number += 1  # another batch of this run has it; models number their calls anew
                    continue
                # As `interrupt()` does when it finds its answer: count, and hand on what was found so far,
                # or the answers of earlier questions would be all that is stored.
                self._task.scratchpad.interrupt_counter()
                self._task.send([(RESUME, list(resume[: position + 1]))])
                self._take(position, value)
                return value
        return None

    def _take(self, position: int, ledger: Mapping[str, Any]) -> None:
        assert self._task is not None
        slot = _Slot(ledger)
        slot.attempt = self._task.attempt
        self._task.scratchpad.resume[position : position + 1] = [slot]
        self._position, self._in_slot = position, True

    def _bare_answers(self) -> list[Any]:
        """Answers to the questions of our only call, where LangGraph's own node had asked them.

        They have no name on them, so it has to be clear whose they are.
        """
        if self._task is None or not self._is_node or len(self._keys) != 1:
            return []
        answers = list(self._task.scratchpad.resume)
        plain = self._task.take_plain_answer()
        return answers if plain is None else [*answers, plain]

    def _answers_of_graph(self) -> Mapping[str, Any]:
        assert self._task is not None
        if self._task.resume_map is not None:
            return self._task.resume_map
        pending = self.pending
        if len(pending) == 1 and (answer := self._task.take_plain_answer()) is not None:
            return {pending[0].id: answer}
        return {}

    def _answers_of_caller(self, answers: object) -> Mapping[str, Any]:
        return {} if answers is None else answers_by_id(answers, self.pending)

    @property
    def may_be_replayed(self) -> bool:
        """Whether the node may be run again for what it asks after this batch, results and all."""
        return self._in_slot or (self._task is not None and not self._is_node)

    @property
    def in_graph(self) -> bool:
        return self._task is not None

    @property
    def is_kept(self) -> bool:
        """Whether somebody wants to know of finished calls before the batch ends."""
        return self._held is not None if self._task is None else self._task.durable

    @property
    def pending(self) -> list[Interrupt]:
        """Every open question, in call order."""
        return [question for key in self._keys for question in self.known_of(key).pending]

    def waits(self, key: str) -> bool:
        """Whether a call asked a question that this run does not answer: it need not run at all."""
        pending = self.known_of(key).pending
        return bool(pending) and not any(question.id in self._answers for question in pending)

    def configurable(self, key: str) -> dict[str, Any]:
        """The `configurable` of one call, with what `interrupt()` needs."""
        record = self.records.get(key)
        namespace = self._namespace(key)
        scratchpad = CallScratchpad(
            None if self._task is None else self._task.scratchpad,
            self._bare or None if record is None else self._answers_for(record),
            self,
            key,
            None if self._task is None else self._task.send,
            digests=() if record is None else self._digests_for(record),
            question=None if record is None else self._answered(record),
            namespace=namespace,
            graphs=self._graphs,
            run=self._run,
        )
        return call_configurable(self._conf, namespace, scratchpad, self._answers)

    def accepted(self, key: str, answers: list[Any]) -> None:
        """Note the answers that a call has accepted so far; what it asked for them is settled."""
        record = self.known_of(key)
        before = record.answers
        given = (*(dict(a) if isinstance(a, _Slot) else a for a in answers), *before[len(answers) :])
        digests = self._digests_for(record)[: len(given)]
        noted = CallRecord(answers=given, digests=tuple(digests) if any(digests) else ())
        if record.own and len(answers) <= len(before):
            # A replay of what was accepted before: the question after it is still open.
            noted = noted._replace(pending=record.pending, own=True)
        self._note(key, noted)

    def _namespace(self, key: str) -> str:
        if self._namespaces is not None:
            return self._namespaces[key]
        return call_namespace(self._conf, segment_of(key, self._number))

    def _answers_for(self, record: CallRecord) -> list[Any]:
        """Accepted answers and the one that is offered now; it counts when `interrupt()` has accepted it."""
        answers = list(record.answers)
        if record.own and record.pending[0].id in self._answers:
            answers.append(self._answers[record.pending[0].id])
        return answers

    def _answered(self, record: CallRecord) -> object:
        """The question of a call that this run has the answer to."""
        return record.pending[0].value if record.own and record.pending[0].id in self._answers else None

    def _digests_for(self, record: CallRecord) -> list[str | None]:
        """What each of the answers is good for, where the question said so."""
        digests = list(record.digests)
        if record.own and (digest := digest_in(record.pending[0].value)) is not None:
            digests += [None] * (len(record.answers) - len(digests))
            digests.append(digest)
        return digests

    def asked(self, key: str, interrupt: GraphInterrupt, mark: str | None = None) -> None:
        """Note the questions of a call, and what an observer leaves on it."""
        record = self.known_of(key)
        if isinstance(interrupt, OutcomeUnknown):
            noted = record.accepted()._replace(pending=interrupt.args[0], claimed=True)
            self._note(key, noted if mark is None else noted._replace(mark=mark))
            return
        name = question_id(self._namespace(key), len(record.answers))
        questions: Sequence[Interrupt] = interrupt.args[0] if interrupt.args else ()
        pending = tuple(replace(q, id=name) if q.id == PLACEHOLDER_ID else q for q in questions)
        own = len(pending) == 1 and pending[0].id == name
        self._note(key, record._replace(pending=pending, own=own, mark=record.mark if mark is None else mark))

    def settle_unknown(self, key: str, call: ToolCall) -> None:
        """Take in what a person says of a call whose outcome is unknown, if this run has the answer.

        Raises:
            ValueError: if it is nothing that can be said.
        """
        record = self.known_of(key)
        if not record.claimed or not record.pending or record.pending[0].id not in self._answers:
            return
        message = said_of(key, call, self._answers[record.pending[0].id])
        self._note(key, record.accepted() if message is None else CallRecord(output=message))

    def finished(self, key: str, output: object) -> None:
        """Note the result of a call; what it asked on the way is settled."""
        self._note(key, CallRecord(output=output))

    def left_for_parent(self, key: str, command: Command[Any]) -> None:
        """Note that a call ended with a command for the graph around ours."""
        if command.graph == self._namespace(key):
            # A graph that the tool ran knows the call as its parent; LangGraph knows the task only.
            around = self._conf.get("checkpoint_ns")
            command = replace(command, graph=around or Command.PARENT)
        self._note(key, CallRecord(parent=command))

    def dump(self) -> dict[str, Any]:
        """Returns the ledger as data that any serializer can keep."""
        run = {"run": self._run} if self._task is None else {}
        return {"format": FORMAT, "keys": self._keys, "calls": self._stored, **run}

    def publish(self) -> None:
        """Put the ledger where the next run of the calls finds it."""
        if self._held is not None:
            self._held.update(self.dump())
        if self._task is None or not self.records:
            return
        resume = self._task.scratchpad.resume
        if not self._in_slot:
            self._task.scratchpad.interrupt_counter()
            self._take(len(resume), self.dump())
        else:
            self._take(self._position, self.dump())
        self._task.send([(RESUME, resume)])

    async def save(self) -> None:
        """Store what is known now, so that a killed process finds it; calls that finish meanwhile share a write."""
        if self._held is not None:
            self._held.update(self.dump())
        if self._task is None:
            return
        self._unsaved = True
        if self._saving:
            return
        self._saving = True
        try:
            while self._unsaved:
                self._unsaved = False
                await self._task.save(self._resume_with_dump())
        finally:
            self._saving = False

    def _resume_with_dump(self) -> list[Any]:
        assert self._task is not None
        resume = list(self._task.scratchpad.resume)
        dump = {**self.dump(), "calls": dict(self._stored)}
        if self._in_slot:
            resume[self._position] = dump
        else:
            resume.append(dump)
        return resume
