"""Reports of one run and of its model requests to observers."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import uuid4

from langchain_core.runnables import RunnableConfig

from callboard._calls._observers import current_observers, current_run, numbers
from callboard._loops._current import current_loop
from callboard._loops._protocol import EventLoop
from callboard._records._events import RunEvent, RunInfo, RunObserver, RunPhase

R = TypeVar("R")


class RunReporter:
    """Reports a run to its observers; does nothing without observers."""

    def __init__(self, observers: tuple[RunObserver, ...], info: RunInfo, loop: EventLoop) -> None:
        self.questions = 0
        """Number of open questions at the end of the run."""
        self.result: object = None
        """State at the end of the run."""
        self._observers = observers
        self._info = info
        self._loop = loop

    def tell(self, phase: RunPhase, **facts: Any) -> None:
        """Send an event to all observers."""
        event = RunEvent(phase=phase, run=self._info, time=self._loop.now(), **facts)
        for observer in self._observers:
            observer(event)

    async def ask(self, model: object, given: object, ask: Callable[[], Awaitable[R]]) -> R:
        """Send a request to the model, and report the request and the reply."""
        if not self._observers:
            return await ask()
        self.tell("asked", model=model, given=given)
        try:
            reply = await ask()
        except BaseException as error:
            self.tell("answered", model=model, error=error)
            raise
        self.tell("answered", model=model, result=reply)
        return reply


@contextmanager
def reported(
    agent: str, config: RunnableConfig, namespace: str, mark: str | None, given: object
) -> Generator[RunReporter]:
    """Report the start and the end of a run; `mark` is the mark that an observer left where the run resumes."""
    observers = current_observers().runs
    conf = config["configurable"]
    thread_id = None if "thread_id" not in conf else str(conf["thread_id"])
    run_id = str(config.get("run_id") or uuid4()) if observers else ""
    info = RunInfo(
        number=next(numbers), agent=agent, run_id=run_id, thread_id=thread_id, namespace=namespace, resumes=mark
    )
    reporter = RunReporter(observers, info, current_loop())
    if not observers:
        yield reporter
        return
    token = current_run.set(info)
    failure: BaseException | None = None
    reporter.tell("begun", given=given)
    try:
        yield reporter
    except BaseException as error:
        failure = error
        raise
    finally:
        current_run.reset(token)
        reporter.tell("ended", error=failure, questions=reporter.questions, result=reporter.result)
        failure = None  # its traceback refers to this frame: break the cycle
