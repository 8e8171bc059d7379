"""Process of `callboard worker`: checks its options, serves until a signal arrives, then drains.

`served` finds the functions and actors to serve. They run in worker processes, or in this process (`InProcess`).
"""

import inspect
import logging
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGTERM
from types import ModuleType, TracebackType
from typing import Any, Final, Self

import anyio
from anyio import from_thread
from anyio.lowlevel import current_token
from anyio.to_thread import run_sync

from callboard import Actor, ActorStartError, Drained
from callboard.commands import load_named
from callboard.extend import (
    Body,
    Engine,
    EngineError,
    Seat,
    actor_behind,
    attached_context,
    dispatch_event,
    inject_context,
)
from callboard_actors._util._secret import secret_from
from callboard_actors.process import Confine, Processes
from callboard_actors.remote import _tls
from callboard_actors.remote._addresses import Address, address
from callboard_actors.remote._handshake import Offer
from callboard_actors.remote._in_worker import name_of
from callboard_actors.remote._server import Admission, Server

# Functions and actors to serve, by name.

_OF_A_TOOL = ("func", "coroutine")
"""Attributes in which LangChain's tools keep the functions that they were made of."""
_OWN_OF_A_TOOL = ("_run", "_arun")
"""Methods of a tool class that was not made of a function."""


def served(name: str, app_dir: Path) -> dict[str, Callable[..., Any]]:
    """Return the functions and actor classes to serve, by the names that agents ask for.

    Raise `ValueError` if the name cannot be found, or contains nothing that can be served.

    Args:
        name: `module`, for its public functions, tools and actors, or `module:attribute`: a function, a tool, an actor,
            a node, or a list of them.
        app_dir: folder in which modules are looked for first.
    """
    _, found = load_named(name, app_dir, example="tools")
    things = {name_of(one): one for one in _things(found, name)}
    if not things:
        raise ValueError(f"{name} has nothing to serve: no function, no tool, no actor that is defined there")
    return things


def _things(found: Any, name: str) -> Iterator[Callable[..., Any]]:
    """Yield the functions and actor classes in a module, an object or a list."""
    if isinstance(found, ModuleType):
        for public, one in vars(found).items():
            # Everything served can be run by every agent, so imported and private names of a module are left out.
            if not public.startswith("_") and _is_of(one, found):
                yield from _things(one, f"{name}:{public}")
    elif isinstance(found, type) and issubclass(found, Actor):
        yield found
    elif isinstance(found, Actor):
        yield type(found)
    elif isinstance(actor := getattr(found, "actor", None), Actor):  # a child spec, made by `child()`
        yield type(actor)
    elif isinstance(tools := getattr(found, "tools_by_name", None), Mapping):
        yield from _things(list(tools.values()), name)
    elif _is_tool(found):
        yield from _of_tool(found, name)
    elif callable(found) and not isinstance(found, type):
        yield found
    elif isinstance(found, Iterable) and not isinstance(found, (str, bytes, Mapping)):
        for place, one in enumerate(found):
            yield from _things(one, f"{name}[{place}]")
    else:
        raise ValueError(f"{name} is no function, no tool and no actor, but {found!r:.200}")


def _is_tool(found: Any) -> bool:
    return not isinstance(found, type) and isinstance(getattr(found, "name", None), str) and hasattr(found, "ainvoke")


def _of_tool(tool: Any, name: str) -> Iterator[Callable[..., Any]]:
    functions = [one for attribute in _OF_A_TOOL if (one := getattr(tool, attribute, None)) is not None]
    for one in functions or [getattr(tool, attribute) for attribute in _OWN_OF_A_TOOL]:
        if (actor := actor_behind(one)) is not None:
            raise ValueError(f"{name} has a handler of the actor {actor.name}; name its class instead, in a list")
        yield one


def _is_of(one: Any, module: ModuleType) -> bool:
    """Return whether an object was defined in the module, not imported."""
    if isinstance(one, type):
        return issubclass(one, Actor) and one.__module__ == module.__name__
    if inspect.isfunction(one):
        return one.__module__ == module.__name__
    if _is_tool(one):
        inner = getattr(one, "func", None) or getattr(one, "coroutine", None) or type(one)
        return getattr(inner, "__module__", None) == module.__name__
    return False


# Engine without worker processes.


class InProcess:
    """Engine that runs a limited number of bodies in tasks and threads of this process.

    A cancelled async body is cancelled. A thread cannot be killed: after its cancellation it continues without a
    caller, and occupies a thread until it ends.
    """

    def __init__(self, *, workers: int) -> None:
        self._limiter = anyio.CapacityLimiter(workers)
        # Apart from the bodies' limit: an abandoned thread keeps its token here, while its body gives back the other
        # one.
        self._threads = anyio.CapacityLimiter(workers)

    async def __aenter__(self) -> Self:
        """Do nothing: there is nothing to start."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        pass

    def check(self, fn: Callable[..., Any], /, *, title: str) -> None:
        """Accept any function, since nothing is transferred."""

    async def run_body(self, body: Body, /) -> Any:
        """Run a body: async functions as part of this task, sync ones in a thread."""
        async with self._limiter:
            if body.on_begin is not None:
                body.on_begin()
            with attached_context(inject_context(), _teller()), _exits_are_of(body):
                [value] = await run_sync(_called, body, abandon_on_cancel=True, limiter=self._threads)
                return await value if isinstance(value, Coroutine) else value

    @asynccontextmanager
    async def seat(self, title: str, /) -> AsyncGenerator[Seat]:
        """Yield a seat without a process: its owner shares the modules of this process with all others."""
        yield _InProcessSeat()


class _InProcessSeat:
    """Seat in this process; bodies run on the event loop and cannot be killed."""

    async def run_body(self, body: Body, /) -> Any:
        if body.on_begin is not None:
            body.on_begin()
        with attached_context(inject_context(), _teller()), _exits_are_of(body):
            [value] = _called(body)
            return await value if isinstance(value, Coroutine) else value

    async def until_ended(self) -> str:
        # It ends with its block only.
        await anyio.sleep_forever()
        raise AssertionError("nobody comes here")


@contextmanager
def _exits_are_of(body: Body) -> Generator[None]:
    """Turn `SystemExit` and `KeyboardInterrupt` of a body into an error of this body, since other bodies run here."""
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        reason = f"it raised {error!r}, which would have ended its worker"
        raise EngineError(body.title, body.call_id, reason, ended="unknown", recurs=True) from error


def _called(body: Body) -> list[Any]:
    """Call a body; wrap the result in a list, because trio rejects coroutine objects returned from threads."""
    return [body.fn(*body.args, **body.kwargs)]


def _teller() -> Callable[[dict[str, Any]], None]:
    """Return a function for any thread that delivers events in this event loop and context."""
    here, token, home = copy_context(), current_token(), threading.get_ident()

    def tell(told: dict[str, Any]) -> None:
        def deliver_here() -> None:
            # A copy, because a context cannot be entered twice at the same time.
            here.copy().run(dispatch_event, told)

        if threading.get_ident() == home:
            deliver_here()
        else:
            from_thread.run_sync(deliver_here, token=token)

    return tell


# The process.

FAILED, WRONG = 1, 2
"""Exit codes: the worker could not start; the command line is wrong. `Drained` defines the others."""
_MB: Final = 1024 * 1024
_MAX_CALL: Final = 64 * _MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Values of the command line; its help explains each of them."""

    tools: str
    listen: str
    workers: int
    seats: int
    secret_file: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    insecure: bool
    confine: bool
    read: list[str] | None
    write: list[str] | None
    network: bool
    memory: int | None
    in_process: bool
    grace: float
    drain: float
    handshake_timeout: float
    backend: str
    app_dir: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Worker that is ready to start."""

    door: Admission
    engine: AbstractAsyncContextManager[Any]
    offer: Offer
    grace: float
    drain: float


def run(options: Options) -> int:
    """Serve until a signal arrives; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        plan = _planned(options)
    except (ValueError, TypeError, OSError, NotImplementedError) as error:
        _say_what_was_wrong(f"{error}")
        return WRONG
    return anyio.run(_run, plan, backend=options.backend)


def _planned(options: Options) -> _Plan:
    """Check the options, load the served module, and prepare the worker; errors name the wrong option."""
    where = address(options.listen)
    _check(options, where)
    # Before the served module is loaded and workers are started: neither may find the secret in the environment.
    secret = secret_from(options.secret_file, forget=True)
    things = served(options.tools, options.app_dir)
    certificate = options.tls_cert
    return _Plan(
        door=Admission(
            address=where,
            secret=secret,
            tls=None if certificate is None else _tls.server_context(certificate, options.tls_key),
            certificate=None if certificate is None else _tls.own_certificate(certificate),
            handshake_timeout=options.handshake_timeout,
        ),
        engine=_engine(options, things),
        offer=Offer(
            capacity=options.workers,
            seats=options.seats,
            is_plain=options.confine,
            max_call=_MAX_CALL,
            serves=tuple(sorted(things)),
        ),
        grace=options.grace,
        drain=options.drain,
    )


def _check(options: Options, where: Address) -> None:
    """Raise `ValueError` for options that contradict each other."""
    if options.tls_key is not None and options.tls_cert is None:
        raise ValueError("--tls-key is the key of a certificate: give --tls-cert, too")
    # Without TLS, a go-between could relay a genuine handshake and then send calls of its own.
    if options.tls_cert is None and not options.insecure and not where.is_loopback:
        raise ValueError(
            f"--listen {where} can be reached by other machines, and there is no TLS: give --tls-cert, or --insecure "
            "where nobody else is on the network"
        )
    if options.in_process and (options.confine or options.memory is not None):
        raise ValueError("--confine and --memory are for processes, and --in-process has none: give one of both")
    if not options.confine and (options.read or options.write or options.network):
        raise ValueError("--read, --write and --network say what a confined worker may do: give --confine, too")


def _engine(options: Options, things: Mapping[str, Callable[..., Any]]) -> Any:
    """Return the engine that runs the calls: worker processes, or this process."""
    if options.in_process:
        return InProcess(workers=options.workers)
    confine = None
    if options.confine:
        confine = Confine(read=options.read or (), write=options.write or (), network=options.network)
    memory = None if options.memory is None else options.memory * _MB
    pool = Processes(workers=options.workers, grace=options.grace, confine=confine, memory=memory)
    for name, one in things.items():
        # Also adds the modules to those that are preloaded.
        pool.check(one, title=name)
    return pool


async def _run(plan: _Plan) -> int:
    """Serve until a signal arrives, then drain; return the exit code."""
    code = FAILED
    try:
        async with plan.engine as engine:
            code = await _serve(plan, engine)
    except ActorStartError as error:
        _say_what_was_wrong(error.reason)
    except OSError as error:
        _say_what_was_wrong(f"it cannot listen at {plan.door.address}: {error}")
    return code


async def _serve(plan: _Plan, engine: Engine) -> int:
    server = Server(plan.door, engine, plan.offer, grace=plan.grace)
    code = FAILED
    # Before the address is printed: programs that wait for this line may send a signal at once.
    with anyio.open_signal_receiver(SIGTERM, SIGINT) as signals:
        where = await server.listen()
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve)
            print(f"{len(plan.offer.serves)} served at {where}", flush=True)  # noqa: T201
            await anext(signals)
            code = await _drained(server, plan.drain, signals)
    return code


async def _drained(server: Server, seconds: float, signals: Any) -> int:
    """Drain the server; a second signal ends the wait for running calls."""
    reports: list[Drained] = []
    async with anyio.create_task_group() as group:

        async def hurry() -> None:
            await anext(signals)
            server.hurry()

        group.start_soon(hurry)
        reports.append(await server.drain(seconds))
        group.cancel_scope.cancel()
    return reports[0].exit_code


def _say_what_was_wrong(what: str) -> None:
    print(f"Error: {what}", file=sys.stderr)  # noqa: T201
