"""Process of `callboard worker`: checks its options, serves until a signal arrives, then drains."""

import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any, Final

import anyio

from callboard import ActorStartError, Drained
from callboard.extend import Engine
from callboard_actors._util._secret import secret_from
from callboard_actors.process import Confine, Processes
from callboard_actors.remote import _tls
from callboard_actors.remote._addresses import Address, address
from callboard_actors.remote._handshake import Offer
from callboard_actors.remote._in_process import InProcess
from callboard_actors.remote._served import served
from callboard_actors.remote._server import Door, Server

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

    door: Door
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
        door=Door(
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
