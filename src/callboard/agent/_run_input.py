"""Input of a run: new messages, answers, a command, or `None` to resume."""

from contextlib import suppress
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.errors import EmptyInputError, ErrorCode, InvalidUpdateError, create_error_message
from langgraph.types import Command

from callboard._util._suggestions import did_you_mean
from callboard.conversations._checkpoint import MESSAGES
from callboard.conversations._flow import END, Flow
from callboard.conversations._journal_entries import Source
from callboard.conversations._langgraph_threads import open_calls
from callboard.conversations._sends import check_sends, nodes_in, sends_in
from callboard.conversations._thread import START, Thread
from callboard.tools._answers import Answers, answers_by_id, is_by_id


async def take_in(given: Any, thread: Thread, flow: Flow) -> tuple[Answers, bool]:
    """Apply the input of a run to its thread; return the answers, and whether the run resumes from a stop.

    Raises:
        EmptyInputError: if the input is empty and the thread has nothing to resume.
        UnknownInterruptError: if an answer matches no open question.
        RuntimeError: for answers without a checkpointer.
    """
    if START in thread.next and (given is None or isinstance(given, Command)):
        # The thread stands where earlier input had arrived: resuming applies that input, new input replaces it.
        await thread.amend(thread.written([START]), lambda: [flow.entry], "loop")
    elif given is None and not thread.has_begun:
        raise _nothing(given)
    if isinstance(given, Command):
        return await _take_command(given, thread, flow)
    if given is None:
        return {}, True
    _check_form(given)
    writes = thread.schema.writes_of(given)
    if not writes:
        raise _nothing(given)
    # Finished tasks of the interrupted step keep their results, although new input does not resume it.
    await thread.amend([*finished_writes(thread), *writes], lambda: [flow.entry], "input")
    return {}, False


async def _take_command(command: "Command[Any]", thread: Thread, flow: Flow) -> tuple[Answers, bool]:
    if command.resume is not None and not thread.is_kept:
        raise RuntimeError("Cannot use Command(resume=...) without checkpointer")
    writes = thread.schema.writes_of(Command(update=command.update)) if command.update else []
    goto: list[Any] = _listed(command.goto)
    check_sends(goto, flow.nodes, MESSAGES)
    if unknown := [node for node in map(str, nodes_in(goto)) if node not in (*flow.nodes, END)]:
        meant = did_you_mean(unknown[0], flow.nodes)
        raise InvalidUpdateError(f"Node {unknown[0]} does not exist; there are {', '.join(flow.nodes)}{meant}")
    if command.resume is None and not writes and not goto:
        raise EmptyInputError("Received empty Command input")
    answers = _answers_in(command, thread)
    if writes or goto:
        # A command on a new thread is its first input.
        goes = bool(goto) or not thread.has_begun
        following = [target for target in goto if target != END] if goto else [flow.entry]
        if sends_in(goto) and not thread.has_begun:
            following = [*following, flow.entry]
        finished = finished_writes(thread) if goto else []
        source: Source = "command" if thread.has_begun else "update"
        await thread.amend([*finished, *writes], (lambda: following) if goes else None, source)
    return answers, True


def _answers_in(command: "Command[Any]", thread: Thread) -> Answers:
    stops = bool(thread.coming) and not thread.questions and not thread.asked_unheard
    if command.resume is None or (stops and not is_by_id(command.resume)):
        return {}  # no question is open: any value resumes the run
    return answers_by_id(command.resume, thread.questions)


def finished_writes(thread: Thread) -> list[tuple[str, Any]]:
    """Return the writes of finished tasks of an unfinished step; calls in the order of the reply."""
    if not thread.records:
        return []
    calls = [*thread.sent_tasks(), *(key for key, _ in open_calls(thread))]
    tasks = [task for task in thread.records if task != START]
    writes: list[tuple[str, Any]] = []
    for task in sorted(tasks, key=lambda task: calls.index(task) if task in calls else -1):
        more = [*writes, *thread.written([task])]
        with suppress(InvalidUpdateError):  # conflicts with another task, so it ended the step
            thread.state.with_writes(more)
            writes = more
    return writes


def _check_form(given: object) -> None:
    """Raise LangGraph's error for input that is not a state, with a correct example."""
    if isinstance(given, str):
        instead = f"{{'messages': [('user', {given!r})]}}"
    elif isinstance(given, list) and all(isinstance(one, (BaseMessage, dict, str)) for one in given):
        instead = "{'messages': [...]}"
    else:
        return
    told = f"Expected dict, got {given}; an agent starts from a state with messages: {instead}"
    raise InvalidUpdateError(create_error_message(message=told, error_code=ErrorCode.INVALID_GRAPH_NODE_RETURN_VALUE))


def _listed(goto: Any) -> list[Any]:
    return [target for target in (goto if isinstance(goto, (list, tuple)) else [goto]) if target]


def _nothing(given: object) -> EmptyInputError:
    return EmptyInputError(f"An agent starts from messages, as in {{'messages': [('user', 'hi')]}}; got {given!r}")
