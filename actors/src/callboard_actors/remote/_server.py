"""Server of `callboard worker`: accepts agents, runs a session for each, and lets calls finish before it ends.

The code of the command stands at the end: it checks its options, finds the functions and actors to serve, and
serves until a signal arrives.
"""

import inspect
import logging
import ssl
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGINT, SIGTERM
from types import ModuleType
from typing import Any, Final

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream, TaskGroup
from anyio.streams.stapled import MultiListener

from callboard import Actor, ActorStartError, CallError, Drained, UnknownCall
from callboard.commands import load_named
from callboard.extend import Body, Engine, EngineError, Seat, actor_behind, forwarded_context
from callboard_actors._engine._frames import (
    OUTCOMES,
    FrameReader,
    GarbageError,
    Header,
    Kind,
    as_json,
    frame,
    from_json,
    lost,
    parts_of,
)
from callboard_actors._engine._replies import Reply, bounded, replies
from callboard_actors._engine._session import Connection
from callboard_actors._util._secret import secret_from
from callboard_actors.process import Confine, Processes
from callboard_actors.remote._handshake import (
    LONGEST_GREETING,
    Address,
    Offer,
    RefusedError,
    Wishes,
    address,
    admit,
    as_server,
    binding_of,
    own_certificate,
    server_context,
)
from callboard_actors.remote._in_worker import name_of, run_in_worker

# Session of one agent.

_MOST_WORDS: Final = 1_000
"""Number of queued frames for an agent above which events are dropped; replies are never dropped."""
_REASON: Final = 10_000
"""Maximum number of characters of a reason that is sent to an agent."""


def ended(known: str, reason: str, *, recurs: bool = False) -> Reply:
    """Return the reply for a call that ended without a result: `known` says whether its function has begun."""
    return Kind.ENDED, as_json({"ended": known, "reason": reason[:_REASON], "recurs": recurs})


@dataclass(slots=True)
class _Seat:
    """Dedicated worker of an agent; the scope `left` is cancelled when the agent no longer needs the worker."""

    seat: Seat | None = None
    left: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class ClientSession:
    """Session of one agent: its calls and its dedicated workers, which end with its connection."""

    def __init__(self, server: "Server", connection: Connection, max_result: int) -> None:
        self._server = server
        self._connection = connection
        self._max_result = max_result
        # A call is in this table from its frame to its reply; only these numbers may send events.
        self._calls: dict[int, anyio.CancelScope] = {}
        self._seats: dict[int, _Seat] = {}
        self._group: TaskGroup
        self._begun: set[int] = set()
        """Numbers of the running calls whose functions have begun."""
        self._is_draining = False
        # Set by `stop`: what is cancelled from then on is reported as ended by the drain.
        self._is_stopping = False
        self.drained = Drained()
        """Results of the drain for this agent: finished, ended and unknown calls."""

    @property
    def is_busy(self) -> bool:
        """`True` while a call runs or a dedicated worker is in use."""
        return bool(self._calls or self._seats)

    async def stay(self) -> str:
        """Serve the agent until its connection ends, then cancel its calls; return the reason of the end."""
        reason = ""
        async with anyio.create_task_group() as self._group:
            reason = await self._connection.run(self._take_in)
            # The replies cannot be sent any more, and the agent counts these calls as unknown.
            self._group.cancel_scope.cancel()
        return reason

    def drain(self) -> None:
        """Refuse new calls, and notify the agent, so that the agent disconnects when its running calls have ended."""
        self._is_draining = True
        self._connection.send(frame(Kind.DRAIN))

    def stop(self) -> None:
        """Cancel all running calls and end the dedicated workers, each within its grace."""
        self._is_stopping = True
        for scope in self._calls.values():
            scope.cancel()
        for one in self._seats.values():
            one.left.cancel()

    async def close_after_flush(self) -> None:
        """Close the connection after the queued frames are written, or after two seconds."""
        with anyio.move_on_after(2.0):
            await self._connection.flush()
        self._connection.close("its worker has ended")

    def _take_in(self, header: Header, body: bytes | bytearray) -> None:
        # Runs in the reading task, so it never waits; a GarbageError closes the connection.
        kind, number, _ = header
        if kind is Kind.CALL:
            self._begin(number, bytes(body))
        elif kind is Kind.CANCEL:
            if number in self._calls:
                self._calls[number].cancel()
        elif kind is Kind.SEAT:
            self._have_seat(number, from_json(body))
        elif kind is Kind.LEAVE:
            if number in self._seats:
                self._seats[number].left.cancel()
        elif kind is Kind.REFUSE:
            self._connection.close(f"the agent has ended it: {body.decode(errors='replace')}")
        else:
            raise GarbageError(f"a {kind.name}, which is not for a worker")

    def _begin(self, number: int, call: bytes) -> None:
        if number in self._calls:
            raise GarbageError("a call whose number another one has")
        try:
            along, pickled = parts_of(call)
            body = self._body(number, along, pickled)
            given, seat = dict(along["carried"]), along.get("seat")
        except (ValueError, KeyError, TypeError, LookupError, RecursionError) as error:
            raise GarbageError(f"a call that cannot be understood: {error!r:.200}") from None
        # Registered before the task starts: the next frame may already cancel this call.
        self._calls[number] = scope = anyio.CancelScope()
        if (refusal := self._refusal(body, seat)) is not None:
            scope.cancel()
            del self._calls[number]
            self._reply(number, *refusal)
            return
        self._group.start_soon(self._serve, number, scope, body, given, seat)

    def _body(self, number: int, along: dict[str, Any], pickled: memoryview) -> Body:
        grace, call_id = along.get("grace"), along.get("call_id")
        return Body(
            fn=run_in_worker,
            args=(str(along["subject"]), self._server.offer.is_plain, bytes(pickled)),
            title=str(along["title"])[:1000],
            call_id=None if call_id is None else str(call_id),
            grace=None if grace is None else max(0.0, float(grace)),
            on_begin=lambda: self._begun.add(number),
        )

    def _refusal(self, body: Body, seat: int | None) -> Reply | None:
        """Return the reply that refuses a call, or `None` if the call may begin."""
        subject = body.args[0]
        # By name only; `run_in_worker` compares the pickled function with it. It keeps honest agents to the served
        # functions. An agent with the secret can run any code, because its pickles are executed.
        if subject not in self._server.offer.serves:
            return ended("unavailable", f"{subject} is not served by its worker", recurs=True)
        if self._is_draining:
            return ended("unavailable", "its worker is being drained")
        # The dedicated worker may have ended while this frame was on its way.
        if seat is not None and (seat not in self._seats or self._seats[seat].seat is None):
            return ended("unavailable", "its seat has ended")
        return None

    async def _serve(
        self, number: int, scope: anyio.CancelScope, body: Body, given: dict[str, Any], seat: int | None
    ) -> None:
        reply = None
        try:
            with scope, ExitStack() as stack:
                stack.enter_context(forwarded_context(given, lambda told: self._tell(number, told)))
                reply = await self._reply_of(body, seat)
        finally:
            # Before the reply: an event after the reply would be a protocol error at the agent.
            del self._calls[number]
            has_begun = number in self._begun
            self._begun.discard(number)
            self._count(body, is_ended=reply is None and self._is_stopping, has_begun=has_begun)
            # Cancelled: unknown only if the body has begun, otherwise another worker may run it.
            if reply is None:
                why = "its worker was stopped" if self._is_stopping else "it was cancelled"
                reply = ended("unknown" if has_begun else "unavailable", why)
            self._reply(number, *reply)

    def _count(self, body: Body, *, is_ended: bool, has_begun: bool) -> None:
        """Count a call that has ended, if this session is being drained: as finished, or as ended by force."""
        if not is_ended:
            self.drained += Drained(finished=int(self._is_draining))
        elif has_begun:
            self.drained += Drained(ended=1, unknown=(UnknownCall(tool=body.title, call_id=body.call_id),))
        else:
            self.drained += Drained(ended=1)

    async def _reply_of(self, body: Body, seat: int | None) -> Reply:
        runs: Any = self._server.engine if seat is None else self._seats[seat].seat
        try:
            kind, said = await runs.run_body(body)
            if kind not in OUTCOMES:
                raise ValueError(f"its worker process has replied a frame of kind {kind!r}")
            return Kind(kind), bytes(said)
        except EngineError as error:
            if error.ended == "finished":
                return Kind.LOST, lost(error.reason)
            return ended(error.ended, error.reason, recurs=error.recurs)
        except CallError as error:  # for instance, its engine was closed
            return ended("unavailable", str(error))
        except Exception as error:
            return replies(is_plain=self._server.offer.is_plain).raised(error)

    def _reply(self, number: int, kind: Kind, said: bytes) -> None:
        # The agent closes the connection on a longer frame, which would lose its other calls, too.
        if kind is not Kind.ENDED:
            kind, said = bounded(kind, said, self._max_result)
        self._connection.send(frame(kind, number, said))

    def _tell(self, number: int, told: dict[str, Any]) -> None:
        # Back-pressure: an agent that reads slowly loses events, but not replies, and the queue stays bounded.
        if number in self._calls and self._connection.backlog < _MOST_WORDS:
            self._connection.send(frame(Kind.TOLD, number, as_json(told)))

    def _have_seat(self, number: int, said: dict[str, Any]) -> None:
        if number in self._seats:
            raise GarbageError("a seat whose number another one has")
        if self._is_draining:
            return self._unseat(number, "its worker is being drained")
        if not self._server.seats_left:
            return self._unseat(number, "its worker has no seat left")
        self._server.seats_left -= 1
        self._seats[number] = _Seat()
        self._group.start_soon(self._keep_seat, number, str(said.get("title", ""))[:1000])
        return None

    async def _keep_seat(self, number: int, title: str) -> None:
        one, reason = self._seats[number], "it was left"
        try:
            async with self._server.engine.seat(title) as seat:
                # From here on `_refusal` accepts calls for it, so it is set before the agent is told.
                one.seat = seat
                self._connection.send(frame(Kind.SEATED, number))
                with one.left:
                    reason = await seat.until_ended()
        except Exception as error:
            reason = getattr(error, "reason", None) or f"{error}"
        finally:
            del self._seats[number]
            # The reservation is given back and the end reported only after the process has ended: the agent's
            # `leave_seat` waits for that.
            self.drained += Drained(ended=int(self._is_stopping))
            self._server.seats_left += 1
            self._unseat(number, "its worker was stopped" if self._is_stopping else reason)

    def _unseat(self, number: int, reason: str) -> None:
        self._connection.send(frame(Kind.UNSEATED, number, as_json({"reason": reason[:_REASON]})))


# The server.

_logger = logging.getLogger("callboard_actors.remote")
_STRANGERS: Final = 64
"""Maximum number of connections that are in the handshake; further connections are closed at once."""
_BACKLOG: Final = 128
_LAST_WORDS: Final = 1.0
"""Seconds after the grace in which agents are informed of the calls that were ended by force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Network settings of a worker: the address at which it listens, the secret and TLS."""

    address: Address
    secret: bytes = field(repr=False)
    tls: ssl.SSLContext | None
    certificate: bytes | None
    """Certificate of the worker in DER form, whose hash is part of the handshake's proofs; `None` without TLS."""
    handshake_timeout: float
    """Seconds for a whole handshake, TLS included."""


class Server:
    """Server that accepts agents and runs their calls in an engine, which must be open already."""

    def __init__(self, door: Admission, engine: Engine, offer: Offer, *, grace: float) -> None:
        self._door = door
        self.engine = engine
        self.offer = offer
        self._grace = grace
        self._sessions: set[ClientSession] = set()
        # Bounds memory and file descriptors that a client without the secret can use.
        self._strangers = 0
        self.seats_left = offer.seats
        """Number of dedicated workers that agents may still reserve."""
        self._is_draining = False
        self._drained = Drained()
        """Results of the drain for agents that have disconnected."""
        self._multi: MultiListener[SocketStream]
        # Around the wait for running calls, cancelled by `hurry`; around accepting, cancelled first by `drain`; around
        # all sessions, cancelled last by `drain`.
        self._patience = anyio.CancelScope()
        self._listening = anyio.CancelScope()
        self._serving = anyio.CancelScope()

    async def listen(self) -> Address:
        """Start to listen; return the address with the actual port; raise `OSError` if the address cannot be used."""
        host, port = self._door.address
        self._multi = await anyio.create_tcp_listener(local_host=host, local_port=port, backlog=_BACKLOG)
        found: int = self._multi.extra(SocketAttribute.local_port)  # noqa: S610 - no Django
        return Address(host, found)

    async def serve(self) -> None:
        """Accept and serve agents, until `drain` has ended."""
        with self._serving:
            async with anyio.create_task_group() as group:
                # Inner scope: a drain stops accepting, while sessions in the outer group continue.
                with self._listening:
                    async with self._multi:
                        await self._multi.serve(self._receive_safely, task_group=group)

    async def _receive_safely(self, stream: SocketStream) -> None:
        """Handle one connection; log an unexpected error, so that other agents are still served."""
        try:
            await self._receive(stream)
        except Exception:
            _logger.exception("a connection was ended by an error of this worker")

    async def _receive(self, stream: SocketStream) -> None:
        """Perform the handshake with a new client, and serve it until its connection ends."""
        # Before the handshake, since a TLS key exchange costs processor time.
        if self._strangers >= _STRANGERS:
            _logger.warning("a connection is closed, because %d have not proved yet who they are", _STRANGERS)
            await anyio.aclose_forcefully(stream)
            return
        peer = stream.extra(SocketAttribute.remote_address, None)  # noqa: S610 - no Django
        whence = "somebody" if peer is None else "{}:{}".format(*peer[:2])
        # Released when the handshake is over, whatever its outcome; a session does not count any more.
        self._strangers += 1
        found: tuple[ByteStream, FrameReader, Wishes] | None = None
        try:
            found = await self._admitted(stream, whence)
        finally:
            self._strangers -= 1
            if found is None:
                with anyio.CancelScope(shield=True):
                    await anyio.aclose_forcefully(stream)
        if found is not None:
            await self._entertain(whence, *found)

    async def _admitted(self, stream: SocketStream, whence: str) -> tuple[ByteStream, FrameReader, Wishes] | None:
        try:
            # Around all of it: a client that sends one byte now and then occupies its place no longer than this.
            with anyio.fail_after(self._door.handshake_timeout):
                inner: ByteStream = stream
                if self._door.tls is not None:
                    inner = await as_server(stream, self._door.tls)
                reader = FrameReader(inner.receive, LONGEST_GREETING)
                binding = binding_of(self._door.certificate)
                wishes = await admit(inner, reader, self._door.secret, binding, self.offer)
        except TimeoutError:
            _logger.warning("%s did not end its handshake within %g s", whence, self._door.handshake_timeout)
        except (RefusedError, GarbageError) as error:
            _logger.warning("%s was refused: %s", whence, error)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            _logger.info("%s has gone before it was let in: %r", whence, error)
        else:
            # Large frames are accepted only now, from an agent that has the secret.
            reader.longest = self.offer.max_call
            return inner, reader, wishes
        return None

    async def _entertain(self, whence: str, stream: ByteStream, reader: FrameReader, wishes: Wishes) -> None:
        connection = Connection(stream, reader, heartbeat=wishes.heartbeat, silence=wishes.silence)
        session = ClientSession(self, connection, wishes.max_result)
        self._sessions.add(session)
        # Its handshake began before the drain: tell it, as the others were told.
        if self._is_draining:
            session.drain()
        _logger.info("%s is served", whence)
        reason = "it was ended"
        try:
            reason = await session.stay()
        finally:
            self._sessions.discard(session)
            self._drained += session.drained
            _logger.info("%s has gone: %s", whence, reason)

    async def drain(self, timeout: float) -> Drained:
        """Refuse new calls, wait up to `timeout` seconds for running calls, and end the calls that are left."""
        # Before accepting stops: a handshake that is in progress sees it when it finishes.
        self._is_draining = True
        self._listening.cancel()
        _logger.info("drains: %s", self._left())
        for session in self._sessions:
            session.drain()
        # Agents disconnect by themselves when their calls have ended.
        with self._patience, anyio.move_on_after(timeout):
            while self._sessions:
                await anyio.sleep(0.01)
        if any(session.is_busy for session in self._sessions):
            _logger.warning("ends by force what did not finish: %s", self._left())
            await self._end_by_force()
        for session in list(self._sessions):
            await session.close_after_flush()
        self._serving.cancel()
        report = sum((session.drained for session in self._sessions), self._drained)
        _logger.log(logging.WARNING if report.ended else logging.INFO, "was drained: %s", report)
        return report

    def hurry(self) -> None:
        """Stop the wait of `drain` for running calls, so that they are ended by force."""
        self._patience.cancel()

    async def _end_by_force(self) -> None:
        for session in self._sessions:
            session.stop()
        with anyio.move_on_after(self._grace + _LAST_WORDS):
            while any(session.is_busy for session in self._sessions):
                await anyio.sleep(0.01)

    def _left(self) -> str:
        busy = sum(session.is_busy for session in self._sessions)
        return f"{len(self._sessions)} agents are connected, {busy} have something running"


# Functions and actors to serve, by name.

_OF_A_TOOL = ("func", "coroutine")
"""Names of the attributes in which a LangChain tool keeps the functions from which it was made."""
_OWN_OF_A_TOOL = ("_run", "_arun")
"""Names of the methods that run a tool which was not made from a function."""


def served(name: str, app_dir: Path) -> dict[str, Callable[..., Any]]:
    """Load the object with the import name `name`; return the functions and actor classes in it by their names."""
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
    """Return whether a value of a module was defined in that module, and not imported."""
    if isinstance(one, type):
        return issubclass(one, Actor) and one.__module__ == module.__name__
    if inspect.isfunction(one):
        return one.__module__ == module.__name__
    if _is_tool(one):
        inner = getattr(one, "func", None) or getattr(one, "coroutine", None) or type(one)
        return getattr(inner, "__module__", None) == module.__name__
    return False


# The process of `callboard worker`.

FAILED, WRONG = 1, 2
"""Exit codes: the worker could not start; the command line is wrong. `Drained` defines the others."""
_MB: Final = 1024 * 1024
_MAX_CALL: Final = 64 * _MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Values of the command-line options of `callboard worker`; the command's help explains each option."""

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
    """Run `callboard worker` until a signal stops it and all running calls have ended; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        where = address(options.listen)
        _check(options, where)
        # Before the served module is loaded and workers are started: neither may find the secret in the environment.
        secret = secret_from(options.secret_file, forget=True)
        things = served(options.tools, options.app_dir)
        certificate = options.tls_cert
        admission = Admission(
            address=where,
            secret=secret,
            tls=None if certificate is None else server_context(certificate, options.tls_key),
            certificate=None if certificate is None else own_certificate(certificate),
            handshake_timeout=options.handshake_timeout,
        )
        pool = _pool(options, things)
    except (ValueError, TypeError, OSError, NotImplementedError) as error:
        _say_what_was_wrong(f"{error}")
        return WRONG
    return anyio.run(_run, admission, pool, sorted(things), options, backend=options.backend)


def _check(options: Options, where: Address) -> None:
    """Raise `ValueError` for options that contradict each other, or let other machines connect without TLS."""
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
    """Open the pool, serve agents until a signal arrives, then let running calls finish; return the exit code."""
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
    """Serve agents until the first signal, then let calls run for at most `seconds` more; return the exit code."""
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
