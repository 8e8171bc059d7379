"""Command `callboard demo`: introduction, run and result of the demo."""

import warnings
from collections.abc import Iterable
from functools import partial

import anyio
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from rich.console import Console

from callboard import AbandonedThreadWarning
from callboard._cli._command_options import DemoOptions
from callboard._cli._demo_database import temporary_database
from callboard._cli._recording import recorded
from callboard._cli._session import Measurements, Session
from callboard._cli._view import QuietlyClosedConsole, open_view, result_table
from callboard._cli._work import Work, make_work, real_model

_FETCHES = 300
_FETCHES_OF_A_REAL_MODEL = 20
_WIDE = 160
"""Width of the result table in cells, if the output is not a terminal."""


def run_demo(options: DemoOptions) -> int:
    """Run the demo and return the exit code.

    Raises:
        CommandError: if the file of a recording cannot be written.
        ModelError: if a real model is not available, or fails.
    """
    console = QuietlyClosedConsole(highlight=False, markup=False)
    console.soft_wrap = not console.is_terminal  # a file or a pipe gets whole lines, without line breaks at a width
    model = None if options.model is None else real_model(options.model)
    work = make_work(options.calls or (_FETCHES if model is None else _FETCHES_OF_A_REAL_MODEL), seed=options.seed)
    for line in _introduction(work, options):
        console.print(line)
    run = _played(options, work, model, console)
    console.print(result_table(run.counts, console.width if console.is_terminal else _WIDE))
    for line in _conclusion(run):
        console.print(line)
    return _exit_code(run)


def _played(options: DemoOptions, work: Work, model: BaseChatModel | None, console: Console) -> Measurements:
    """Run the agent, show its calls meanwhile, and return the measurements."""
    run, seed = Measurements(), options.seed
    recording = partial(recorded, options.record)
    with temporary_database(seed=seed) as database, open_view(run.counts, console, live=options.live) as view:
        session = Session(run=run, view=view, work=work, model=model, seed=seed, database=database, recording=recording)
        with warnings.catch_warnings():
            # A signal may abandon a query half-way. The conclusion counts it as "threads left over".
            warnings.simplefilter("ignore", AbandonedThreadWarning)
            anyio.run(session.play, backend=options.backend.value)
    return run


def _introduction(work: Work, options: DemoOptions) -> Iterable[str]:
    if options.model is None:
        yield (
            f"The model is scripted: it asks for {work.count} calls at once and then reads the answers. "
            "Use --model provider:name for a real one."
        )
    else:
        yield f"The model is {options.model}: it is told to make {work.count} calls, and may make others."
    yield f"The work: {work}; on {options.backend.value}."
    yield "The tools are real: an HTTP service in a process of its own, and a SQLite file asked from worker threads."


def _conclusion(run: Measurements) -> Iterable[str]:
    if run.stopped_by is not None:
        yield f"Stopped by {run.stopped_by.name}: every call that was under way has been cancelled."
    else:
        yield _last_word(run.messages)
        yield _answers(run.messages)
        yield _seen_by_service(run.service)
        yield _speed(run)
    yield from _left_over(run)


def _last_word(messages: Iterable[BaseMessage]) -> str:
    said = [message.text for message in messages if isinstance(message, AIMessage)]
    return f"The model says: {said[-1] if said else 'nothing'}"


def _answers(messages: Iterable[BaseMessage]) -> str:
    asked = answered = 0
    for message in messages:
        asked += len(message.tool_calls) if isinstance(message, AIMessage) else 0
        answered += isinstance(message, ToolMessage)
    return f"answers: {answered} messages for {asked} calls"


def _seen_by_service(stats: dict[str, int]) -> str:
    if not stats:
        return "the service did not say what it has seen"
    return (
        f"the service saw {stats['served'] + stats['abandoned'] + stats['in_flight']} requests, at most "
        f"{stats['peak_in_flight']} at once; {stats['abandoned']} were given up, {stats['in_flight']} are still open"
    )


def _speed(run: Measurements) -> str:
    work = run.counts.total().work
    factor = work / run.wall_clock
    return f"wall clock: {run.wall_clock:.2f} s; one after the other: {work:.2f} s; {factor:.1f} times as fast"


def _left_over(run: Measurements) -> Iterable[str]:
    names = f" ({', '.join(run.left_over)})" if run.left_over else ""
    yield f"tasks left over: {len(run.left_over)}{names}"
    if run.statistics is not None:
        numbers = run.statistics
        yield (
            f"calls left over: {numbers.running} running, {numbers.waiting} waiting; "
            f"threads left over: {numbers.abandoned_threads}"
        )


def _exit_code(run: Measurements) -> int:
    if run.stopped_by is not None:
        return 128 + run.stopped_by
    numbers = run.statistics
    still = numbers is not None and (numbers.running or numbers.waiting or numbers.abandoned_threads)
    return 1 if run.left_over or still else 0
