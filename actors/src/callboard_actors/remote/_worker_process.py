"""Process of `callboard worker`: checks its options, serves until a signal arrives, then drains.

`served` finds the functions and actors to serve.
"""

import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGTERM
from types import ModuleType
from typing import Any, Final

import anyio

from callboard import Actor, ActorStartError, Drained
from callboard.commands import load_named
from callboard.extend import actor_behind
from callboard_actors._util._secret import secret_from
from callboard_actors.process import Confine, Processes
from callboard_actors.remote._handshake import Address, Offer, address, own_certificate, server_context
from callboard_actors.remote._in_worker import name_of
from callboard_actors.remote._server import Admission, Server

# Functions and actors to serve, by name.

_OF_A_TOOL = ("func", "coroutine")
"""Names of the attributes in which a LangChain tool keeps the functions from which it was made."""
_OWN_OF_A_TOOL = ("_run", "_arun")
"""Names of the methods that run a tool which was not made from a function."""


def served(name: str, app_dir: Path) -> dict[str, Callable[..., Any]]:
    """Load the object with this name; return its functions and actor classes by the names that agents ask for.

    Raise `ValueError` if it contains nothing to serve.
    """
    _, found = load_named(name, app_dir, example="tools")
    things = {name_of(one): one for one in _things(found, name)}
    if not things:
        raise ValueError(f"{name} has nothing to serve: no function, no tool, no actor that is defined there")
    return things


def _things(found: Any, name: str) -> Iterator[Callable[..., Any]]:
    """Yield the functions and actor classes in a module, a tool, an actor, a list or another object."""
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
    """Return whether a value in a module was defined there, and not imported."""
    if isinstance(one, type):
        return issubclass(one, Actor) and one.__module__ == module.__name__
    if inspect.isfunction(one):
        return one.__module__ == module.__name__
    if _is_tool(one):
        inner = getattr(one, "func", None) or getattr(one, "coroutine", None) or type(one)
        return getattr(inner, "__module__", None) == module.__name__
    return False


# The process.

FAILED, WRONG = 1, 2
"""Exit codes: the worker could not start; the command line is wrong. `Drained` defines the others."""
_MB: Final = 1024 * 1024
_MAX_CALL: Final = 64 * _MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Values of the command-line options; the help of the command explains each option."""

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
    grace: float
    drain: float
    handshake_timeout: float
    backend: str
    app_dir: Path


def run(options: Options) -> int:
    """Run `callboard worker` until a signal arrives and its calls have ended; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        where = address(options.listen)
        _check(options, where)
        # Before the served module is loaded and workers are started: neither may find the secret in the environment.
        secret = secret_from(options.secret_file, forget=True)
        things = served(options.tools, options.app_dir)
        admission = _admission(options, where, secret)
        pool = _pool(options, things)
    except (ValueError, TypeError, OSError, NotImplementedError) as error:
        _say_what_was_wrong(f"{error}")
        return WRONG
    return anyio.run(_run, admission, pool, sorted(things), options, backend=options.backend)


def _admission(options: Options, where: Address, secret: bytes) -> Admission:
    certificate = options.tls_cert
    return Admission(
        address=where,
        secret=secret,
        tls=None if certificate is None else server_context(certificate, options.tls_key),
        certificate=None if certificate is None else own_certificate(certificate),
        handshake_timeout=options.handshake_timeout,
    )


def _check(options: Options, where: Address) -> None:
    """Raise `ValueError` for options that contradict each other, or that would accept other machines without TLS."""
    if options.tls_key is not None and options.tls_cert is None:
        raise ValueError("--tls-key is the key of a certificate: give --tls-cert, too")
    # Without TLS, a go-between could relay a genuine handshake and then send calls of its own.
    if options.tls_cert is None and not options.insecure and not where.is_loopback:
        raise ValueError(
            f"--listen {where} can be reached by other machines, and there is no TLS: give --tls-cert, or --insecure "
            "where nobody else is on the network"
        )
    if not options.confine and (options.read or options.write or options.network):
        raise ValueError("--read, --write and --network say what a confined worker may do: give --confine, too")


def _pool(options: Options, things: Mapping[str, Callable[..., Any]]) -> Processes:
    """Return the pool of worker processes for the calls of agents; the pool is not opened yet."""
    confine = None
    if options.confine:
        confine = Confine(read=options.read or (), write=options.write or (), network=options.network)
    memory = None if options.memory is None else options.memory * _MB
    pool = Processes(workers=options.workers, grace=options.grace, confine=confine, memory=memory)
    for name, one in things.items():
        # Also adds the modules to those that are preloaded.
        pool.check(one, title=name)
    return pool


async def _run(admission: Admission, pool: Processes, serves: Sequence[str], options: Options) -> int:
    """Serve agents until a signal arrives, then drain; return the exit code."""
    offer = Offer(
        capacity=options.workers,
        seats=options.seats,
        is_plain=options.confine,
        max_call=_MAX_CALL,
        serves=tuple(serves),
    )
    server = Server(admission, pool, offer, grace=options.grace)
    try:
        # The signals before the address is printed: programs that wait for this line may send one at once.
        async with pool:
            with anyio.open_signal_receiver(SIGTERM, SIGINT) as signals:
                where = await server.listen()
                print(f"{len(serves)} served at {where}", flush=True)  # noqa: T201
                return await _until_drained(server, options.drain, signals)
    except ActorStartError as error:
        _say_what_was_wrong(error.reason)
    except OSError as error:
        _say_what_was_wrong(f"it cannot listen at {options.listen}: {error}")
    return FAILED


async def _until_drained(server: Server, seconds: float, signals: Any) -> int:
    """Serve agents until the first signal, then drain; return the exit code."""
    # A second signal ends the wait for running calls.
    report = Drained()
    async with anyio.create_task_group() as group:

        async def hurry() -> None:
            await anext(signals)
            server.hurry()

        group.start_soon(server.serve)
        await anext(signals)
        group.start_soon(hurry)
        report = await server.drain(seconds)
        group.cancel_scope.cancel()
    return report.exit_code


def _say_what_was_wrong(what: str) -> None:
    print(f"Error: {what}", file=sys.stderr)  # noqa: T201
