"""Unauthenticated or misbehaving peers of a worker or a client: each causes an error of its own connection only."""

import signal
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.tls import TLSStream

from callboard import ActorStartError
from callboard.extend import Body, EngineError
from callboard_actors._engine._frames import HEADER, MAGIC, FrameReader, Kind, as_json, frame
from callboard_actors.remote import RemoteEngine
from callboard_actors.remote import _handshake as handshake
from callboard_actors.remote._handshake import server_context

from . import _bodies as bodies
from ._commands import BODIES, SECRET, Worker, engine, worker

pytestmark = pytest.mark.real_clock
WAIT = 40
Serve = Callable[[SocketStream, FrameReader], Any]


def _body(fn: Any, *args: Any) -> Body:
    return Body(fn=fn, args=args, title=fn.__name__)


async def _still_serves(found: Worker) -> None:
    async with engine(found) as remote:
        assert await remote.run_body(_body(bodies.add, 1)) == 2


@asynccontextmanager
async def _connected(found: Worker | str) -> AsyncIterator[SocketStream]:
    host, _, port = (found if isinstance(found, str) else found.address).rpartition(":")
    async with await anyio.connect_tcp(host, int(port)) as stream:
        yield stream


async def _rest(stream: SocketStream) -> bytes:
    """Read all bytes until the other side closes the connection."""
    found = b""
    try:
        while True:
            found += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return found


# --- connections to a worker


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", b"begins no frame"),
        (HEADER.pack(MAGIC, Kind.GREET, 0, 2**62), b"4096 are the most"),
        (HEADER.pack(MAGIC, 99, 0, 0), b"begins no frame"),
        (frame(Kind.GREET, 0, b"{" * 4000), b"JSON that is none"),
        (frame(Kind.GREET, 0, b"[" * 4000), b"JSON that is none"),
        (frame(Kind.GREET, 0, b"[]"), b"no object"),
        (frame(Kind.CALL, 1, b"x"), b"where a handshake should be"),
        (frame(Kind.GREET, 0, as_json({"protocol": 2, "nonce": "x"})), b"speaks version 2 of the protocol"),
        (frame(Kind.GREET, 0, as_json({"protocol": 1})), b"without 'nonce'"),
        (frame(Kind.GREET, 0, as_json({"protocol": 1, "nonce": 7})), b"without 'nonce'"),
        (frame(Kind.GREET, 0, as_json({"protocol": 1, "nonce": "\ud800"})), b"without 'nonce'"),
        (
            frame(Kind.GREET, 0, as_json({"protocol": 1, "nonce": "0"}))
            + frame(Kind.GREET, 0, as_json({"terms": "\ud800", "proof": "0"})),
            b"without 'terms'",
        ),
        (
            frame(Kind.GREET, 0, as_json({"protocol": 1, "nonce": "0"}))
            + frame(Kind.GREET, 0, as_json({"terms": "{}", "proof": "\ud800"})),
            b"has not the secret",
        ),
    ],
)
async def test_bytes_that_are_no_handshake_are_refused(served: Worker, said: bytes, why: bytes) -> None:
    """The peer is told the reason, and other clients are served."""
    with anyio.fail_after(WAIT):
        async with _connected(served) as stream:
            await stream.send(said)
            assert why in await _rest(stream)
        await _still_serves(served)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_who_has_gone_before_it_was_let_in_takes_nobody_with_it(backend: str) -> None:
    """A connection that was reset in the accept queue has no peer address any more; the worker must keep accepting."""
    with worker(BODIES, "--backend", backend) as found:
        host, _, port = found.address.rpartition(":")
        found.signal(signal.SIGSTOP)
        for _ in range(5):
            with socket.create_connection((host, int(port))) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        found.signal(signal.SIGCONT)
        with socket.create_connection((host, int(port)), timeout=WAIT) as one:
            one.sendall(b"x" * HEADER.size)
            assert b"begins no frame" in one.recv(1000)


async def test_a_wrong_secret_is_refused_and_the_engine_says_so(served: Worker) -> None:
    """The error is permanent: retrying with the same secret is useless."""
    with anyio.fail_after(WAIT), pytest.raises(ActorStartError, match="has not the secret that the worker has") as why:
        async with engine(served, secret="another secret of sixteen bytes"):
            pass

    assert why.value.never


async def test_a_replayed_handshake_proves_nothing(served: Worker) -> None:
    """Each handshake contains a fresh nonce, so a recorded one is never valid again."""
    recorded: list[bytes] = []

    class Recorded:
        def __init__(self, stream: SocketStream) -> None:
            self._stream = stream

        async def send(self, item: bytes) -> None:
            recorded.append(item)
            await self._stream.send(item)

        async def receive(self, most: int = 65536) -> bytes:
            return await self._stream.receive(most)

    wishes = handshake.Wishes(heartbeat=5, silence=10, max_result=1000)
    with anyio.fail_after(WAIT):
        async with _connected(served) as stream:
            spied: Any = Recorded(stream)
            offer = await handshake.greet(spied, FrameReader(spied.receive, 4096), SECRET.encode(), "", wishes)
        async with _connected(served) as stream:
            await stream.send(b"".join(recorded))
            assert b"has not the secret" in await _rest(stream)

    assert offer.capacity == 2
    assert len(recorded) == 2


@pytest.mark.exhaustive
async def test_a_handshake_that_never_ends_is_ended() -> None:
    """The handshake timeout counts from the start of the connection, so sending byte by byte does not extend it."""
    with worker(BODIES, "--handshake-timeout", "1") as found:
        with anyio.fail_after(WAIT):
            began = time.monotonic()
            async with _connected(found) as stream:
                await stream.send(HEADER.pack(MAGIC, Kind.GREET, 0, 4000))
                with pytest.raises((anyio.BrokenResourceError, OSError)):
                    while True:
                        await stream.send(b"c")
                        await anyio.sleep(0.05)
            assert 0.9 < time.monotonic() - began < 10
            await _still_serves(found)


@pytest.mark.exhaustive
async def test_strangers_take_no_more_than_so_many_places() -> None:
    """Memory for unauthenticated connections is bounded; clients with the secret are served when these have gone."""
    with worker(BODIES, "--handshake-timeout", "2") as found:
        host, _, port = found.address.rpartition(":")
        strangers = [socket.create_connection((host, int(port))) for _ in range(80)]
        try:
            with anyio.fail_after(WAIT):
                closed = 0
                for one in strangers[70:]:
                    one.settimeout(10)
                    closed += one.recv(1) == b""
                await _still_serves(found)
        finally:
            for one in strangers:
                one.close()

    assert closed == 10


async def _as_agent(stream: SocketStream) -> FrameReader:
    reader = FrameReader(stream.receive, 4096)
    wishes = handshake.Wishes(heartbeat=5, silence=10, max_result=1000)
    await handshake.greet(stream, reader, SECRET.encode(), "", wishes)
    return reader


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"\x00" * 64, "begins no frame"),
        (HEADER.pack(MAGIC, Kind.CALL, 1, 2**40), "67108864 are the most"),
        (frame(Kind.CALL, 1, b"xyz"), "a call that has no beginning"),
        (frame(Kind.CALL, 1, struct.pack("!I", 2) + b"{}"), "a call that cannot be understood"),
        (frame(Kind.VALUE, 1, b"x"), "a VALUE, which is not for a worker"),
        (frame(Kind.SEAT, 1, b"x"), "JSON that is none"),
    ],
)
async def test_an_agent_that_speaks_nonsense_is_sent_away(served: Worker, said: bytes, why: str) -> None:
    """The error message says what was wrong; cancels of unknown calls are ignored."""
    with anyio.fail_after(WAIT):
        async with _connected(served) as stream:
            await _as_agent(stream)
            await stream.send(frame(Kind.CANCEL, 12345) + frame(Kind.LEAVE, 12345) + said)
            assert why.encode() in await _rest(stream)
        await _still_serves(served)


# --- connections to a false worker


_GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, ssl.SSLError)


@asynccontextmanager
async def _listening(receive: Callable[[Any], Any], tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Listen on a socket and handle each connection with the given function."""
    failed: Exception | None = None

    async def within(stream: Any) -> None:
        with suppress(*_GONE):
            async with stream:
                if tls is not None:
                    stream = await TLSStream.wrap(stream, server_side=True, ssl_context=tls, standard_compatible=False)
                await receive(stream)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        async with anyio.create_task_group() as group:
            group.start_soon(listener.serve, within)
            try:
                yield "127.0.0.1:{}".format(listener.extra(SocketAttribute.local_port))
            except Exception as error:
                failed = error
            group.cancel_scope.cancel()
    if failed is not None:
        raise failed


@asynccontextmanager
async def _false_worker(serve: Serve, **offered: Any) -> AsyncIterator[str]:
    """Listen as a worker that has the secret and then misbehaves."""
    offer = handshake.Offer(
        capacity=2, seats=0, is_plain=False, max_call=10_000, serves=(f"{bodies.__name__}:add",), **offered
    )

    async def receive(stream: SocketStream) -> None:
        reader = FrameReader(stream.receive, 4096)
        await handshake.admit(stream, reader, SECRET.encode(), "", offer)
        reader.longest = 10_000
        await serve(stream, reader)
        await _rest(stream)

    async with _listening(receive) as address:
        yield address


async def _call(reader: FrameReader) -> int:
    while (header := (await reader.next())[0]).kind is not Kind.CALL:
        pass
    return header.number


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (lambda number: b"\xff" * 40, "begins no frame"),
        (lambda number: HEADER.pack(MAGIC, Kind.VALUE, number, 2**50), "are the most"),
        (lambda number: HEADER.pack(MAGIC, Kind.TOLD, number, 2**20), "are the most"),
        (lambda number: frame(Kind.VALUE, number + 7, b"x"), "it is for no call"),
        (lambda number: frame(Kind.SEATED, number + 7), "it is for no seat"),
        (lambda number: frame(Kind.CALL, number, b"x"), "a CALL of a call"),
        (lambda number: frame(Kind.TOLD, number, b"nonsense"), "told what nobody can understand"),
        (lambda number: frame(Kind.ENDED, number, b"nonsense"), "said of its end what nobody can understand"),
        (lambda number: b"", "its connection was lost"),
    ],
)
async def test_a_worker_that_speaks_nonsense_fails_its_calls(said: Callable[[int], bytes], why: str) -> None:
    """Calls that were sent become unknown; no reply is believed, and no call waits for ever."""

    async def serve(stream: SocketStream, reader: FrameReader) -> None:
        data = said(await _call(reader))
        if data:
            await stream.send(data)
            return await anyio.sleep(2) if b"nonsense" not in data else None
        await stream.aclose()
        return None

    with anyio.fail_after(WAIT):
        async with _false_worker(serve) as address, engine(address, grace=0.1) as remote:
            with pytest.raises(EngineError, match=why) as ended:
                await remote.run_body(_body(bodies.add, 1))

    assert ended.value.ended == "unknown"


async def test_a_result_that_cannot_be_read_is_lost_and_its_neighbour_is_not() -> None:
    """The unreadable result is an error that its call finished; the other call gets its value."""
    import pickle

    async def serve(stream: SocketStream, reader: FrameReader) -> None:
        first, second = await _call(reader), await _call(reader)
        await stream.send(frame(Kind.VALUE, first, b"no pickle") + frame(Kind.VALUE, second, pickle.dumps(7)))

    found: list[Any] = []

    async def run(remote: RemoteEngine) -> None:
        try:
            found.append(await remote.run_body(_body(bodies.add, 1)))
        except EngineError as error:
            found.append(error.ended)

    with anyio.fail_after(WAIT):
        async with _false_worker(serve) as address, engine(address) as remote:
            async with anyio.create_task_group() as group:
                group.start_soon(run, remote)
                group.start_soon(run, remote)

    assert sorted(found, key=str) == [7, "finished"]


async def test_a_second_reply_to_a_call_is_refused() -> None:
    """The second reply could be meant for another call."""
    import pickle

    async def serve(stream: SocketStream, reader: FrameReader) -> None:
        reply = frame(Kind.VALUE, await _call(reader), pickle.dumps(7))
        await stream.send(reply + reply)

    with anyio.fail_after(WAIT):
        async with _false_worker(serve) as address, engine(address) as remote:
            assert await remote.run_body(_body(bodies.add, 1)) == 7
            [link] = remote._here("").links
            while "it is for no call" not in link.trouble:
                await anyio.sleep(0.01)


async def test_a_seat_that_ends_in_nonsense_has_ended() -> None:
    """Code that waits for the session is told that its connection has ended."""

    async def serve(stream: SocketStream, reader: FrameReader) -> None:
        while (header := (await reader.next())[0]).kind is not Kind.SEAT:
            pass
        await stream.send(frame(Kind.UNSEATED, header.number, b"nonsense"))

    with anyio.fail_after(10):
        async with _false_worker(serve) as address, engine(address) as remote:
            with pytest.raises(EngineError, match="JSON that is none"):
                async with remote.seat("somebody"):
                    pass


async def test_who_has_not_the_secret_is_no_worker() -> None:
    """The client has sent its proof, but nothing that could be run or read."""
    heard: list[bytes] = []

    async def receive(stream: SocketStream) -> None:
        heard.append(await stream.receive())
        await stream.send(frame(Kind.GREET, 0, as_json({"protocol": 1, "nonce": "0"})))
        heard.append(await stream.receive())
        await stream.send(frame(Kind.GREET, 0, as_json({"terms": "{}", "proof": "0" * 64})))
        heard.append(await _rest(stream))

    with anyio.fail_after(WAIT):
        async with _listening(receive) as address:
            with pytest.raises(ActorStartError, match="it does not have the secret that this side has") as why:
                async with engine(address):
                    pass

    assert why.value.never
    assert SECRET.encode() not in b"".join(heard)


async def test_a_stranger_where_a_worker_should_be_does_the_agent_no_harm() -> None:
    """Text that cannot be encoded is no handshake; the error concerns that worker only."""

    async def receive(stream: SocketStream) -> None:
        await stream.send(frame(Kind.GREET, 0, as_json({"protocol": 1, "nonce": "\ud800"})))
        await _rest(stream)

    with anyio.fail_after(WAIT):
        async with _listening(receive) as address:
            with pytest.raises(ActorStartError, match="a handshake without 'nonce'"):
                async with engine(address, start_timeout=2.0):
                    pass


@pytest.mark.parametrize("side", ["agent", "worker"])
@pytest.mark.parametrize("what", ["callboard", "python"])
async def test_other_versions_are_refused(
    served: Worker, monkeypatch: pytest.MonkeyPatch, what: str, side: str
) -> None:
    """A pickle of one version may mean something else in another version."""
    own = handshake.versions()
    monkeypatch.setattr(handshake, "versions", lambda: {**own, what: "0.0"})
    with anyio.fail_after(WAIT), pytest.raises(ActorStartError, match=rf"{what} .*install the same on both") as why:
        if side == "agent":
            async with engine(served):
                pass
        else:
            checked = handshake._check_versions
            monkeypatch.setattr(
                handshake,
                "_check_versions",
                lambda found, who: checked({**found, what: "9.9"}, who) if who == "the worker" else None,
            )
            async with _false_worker(lambda stream, reader: anyio.sleep(1)) as address, engine(address):
                pass

    assert why.value.never


# --- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def with_tls(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Worker, str]]:
    """Start a worker with TLS for all tests; yield it, and the file of its authority's certificate."""
    folder = tmp_path_factory.mktemp("tls")
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "worker.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    with worker(BODIES, "--tls-cert", str(folder / "worker.pem")) as found:
        yield found, str(folder / "ca.pem")


async def test_what_is_said_with_tls_is_read_by_nobody(with_tls: tuple[Worker, str]) -> None:
    """Calls with large arguments and results work over TLS in both directions."""
    found, ca = with_tls
    with anyio.fail_after(WAIT):
        async with engine(found, tls=ca) as remote:
            assert await remote.run_body(_body(bodies.add, 1)) == 2
            assert await remote.run_body(_body(bodies.length, b"x" * 2_000_000)) == 2_000_000
            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(remote.run_body, _body(bodies.big, 200_000))


async def test_a_certificate_of_another_authority_is_refused(with_tls: tuple[Worker, str], tmp_path: Path) -> None:
    """A certificate for another host is refused, too."""
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    with anyio.fail_after(WAIT), pytest.raises(ActorStartError, match="its certificate is not accepted") as why:
        async with engine(with_tls[0], tls=str(tmp_path / "other.pem")):
            pass

    assert why.value.never


async def test_a_go_between_with_a_certificate_that_is_accepted_is_refused_all_the_same(
    authority: trustme.CA, with_tls: tuple[Worker, str]
) -> None:
    """The proofs are bound to the TLS certificate, so a proxy cannot forward them."""
    found, ca = with_tls
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)

    async def between(theirs: Any) -> None:
        async def pass_on(source: Any, target: Any) -> None:
            with suppress(*_GONE):
                while True:
                    await target.send(await source.receive())
            group.cancel_scope.cancel()

        port = int(found.address.rpartition(":")[2])
        async with await anyio.connect_tcp(
            "127.0.0.1", port, tls=True, ssl_context=client, tls_standard_compatible=False
        ) as ours:
            async with anyio.create_task_group() as group:
                group.start_soon(pass_on, ours, theirs)
                group.start_soon(pass_on, theirs, ours)

    with anyio.fail_after(WAIT):
        async with _listening(between, server) as address:
            with pytest.raises(ActorStartError, match="or somebody is in between"):
                async with engine(address, tls=ca):
                    pass


@pytest.mark.exhaustive
async def test_one_side_with_tls_and_one_without_say_so(served: Worker, with_tls: tuple[Worker, str]) -> None:
    """The error names the mismatch whichever side has TLS."""
    found, ca = with_tls
    with anyio.fail_after(WAIT):
        with pytest.raises(ActorStartError, match="do both sides use it"):
            async with engine(served, tls=ca, start_timeout=1.0):
                pass
        with pytest.raises(ActorStartError, match="does it use TLS, and this side not"):
            async with engine(found, start_timeout=1.0):
                pass


# --- refused before any message is sent


def test_other_machines_are_not_spoken_to_without_tls() -> None:
    """Connections to other machines need TLS unless an option allows plain text, on either side."""
    with pytest.raises(ValueError, match=r"would speak without TLS to other machines"):
        engine("127.0.0.1:7000", "10.0.0.1:7000")
    engine("10.0.0.1:7000", insecure=True)
    engine("[::1]:7000", "localhost:7000")


@pytest.mark.parametrize("address", ["worker", "worker:", ":7000", "worker:x", "worker:70000", "::1:7000"])
def test_what_is_no_address_is_refused(address: str) -> None:
    """The error names the invalid address."""
    with pytest.raises(ValueError, match="is no address of a worker"):
        engine(address)


def test_a_secret_has_to_be_there_and_long_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Missing or short secrets are refused, and no error shows the secret."""
    monkeypatch.delenv("CALLBOARD_WORKER_SECRET", raising=False)
    (tmp_path / "secret").write_text("a secret out of a file\n")
    with pytest.raises(ValueError, match="there is no secret: set CALLBOARD_WORKER_SECRET"):
        RemoteEngine(["127.0.0.1:7000"])
    with pytest.raises(ValueError, match="has 5 bytes, and 16 are the least"):
        RemoteEngine(["127.0.0.1:7000"], secret="short")
    with pytest.raises(ValueError, match="give it one of both"):
        RemoteEngine(["127.0.0.1:7000"], secret=SECRET, secret_file=tmp_path / "secret")
    found = RemoteEngine(["127.0.0.1:7000"], secret_file=tmp_path / "secret")

    assert found._terms.secret == b"a secret out of a file"
    assert "secret out" not in repr(found._terms)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["grace", "connect_timeout", "start_timeout", "patience"])
def test_what_is_no_number_of_seconds_is_refused(name: str, seconds: float) -> None:
    """The error is raised when the engine is made, not when it is opened."""
    with pytest.raises(ValueError, match=rf"RemoteEngine\({name}=.*\) is a number of seconds"):
        engine("127.0.0.1:7000", **{name: seconds})


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    """The error names the file; an empty name does not mean the system's authorities."""
    (tmp_path / "ca.pem").write_text("nothing")
    for file in ("missing.pem", "ca.pem"):
        with pytest.raises(ValueError, match=f"{file}' is no file of an authority's certificate"):
            engine("127.0.0.1:7000", tls=str(tmp_path / file))
        with pytest.raises(ValueError, match=f"--tls-cert .*{file} has to be a certificate, and it to have its key"):
            server_context(tmp_path / file, None)
    with pytest.raises(ValueError, match="tls='' names no file"):
        engine("127.0.0.1:7000", tls="")
