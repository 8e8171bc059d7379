"""The beginning of a connection: both sides prove that they have the secret, and say on which terms they go on.

The agent greets, the worker answers, each with something nobody has seen before; then each proves to have the secret
upon both, and upon the terms that it states, the agent first. What was recorded proves nothing a second time.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from typing import Any, TypeVar

from anyio.abc import ByteStream

from callboard_actors.process._frames import GarbageError
from callboard_actors.remote._secret import is_proved, nonce, proof
from callboard_actors.remote._wire import (
    LONGEST_WELCOME,
    PROTOCOL,
    FrameReader,
    Kind,
    as_json,
    frame,
    from_json,
)

T = TypeVar("T", "Wishes", "Offer")
_AGENT, _WORKER = "agent", "worker"


class RefusedError(Exception):
    """One side wants no connection with the other; says why."""

    def __init__(self, reason: str, *, for_good: bool = True) -> None:
        self.reason = reason
        self.for_good = for_good
        """Whether it is no use to try again as long as nobody changes anything."""
        super().__init__(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What an agent asks for."""

    heartbeat: float
    """Seconds between two signs of life, from either side."""
    silence: float
    """Seconds without one, after which a side is away."""
    max_result: int
    """Bytes that a reply may have."""

    def __post_init__(self) -> None:
        if not 0.01 <= self.heartbeat <= self.silence <= 86_400 or self.max_result < 1:
            raise ValueError(f"{self!r}: 0.01 <= heartbeat <= silence, and max_result of 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a worker tells an agent of itself, once both have proved who they are."""

    capacity: int
    """Calls that it runs at once."""
    seats: int
    """Workers that agents may have for themselves, all of them together."""
    is_plain: bool
    """Whether it answers in JSON, because what runs there is not trusted."""
    max_call: int
    """Bytes that a call may have."""
    serves: tuple[str, ...]
    """The names of what runs there."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "serves", tuple(self.serves))
        if self.capacity < 1 or self.max_call < 1:
            raise ValueError(f"{self!r}: capacity and max_call of 1 or more")


def versions() -> dict[str, str]:
    """The versions of callboard and of Python, which have to be the same on both sides."""
    return {"callboard": version("callboard"), "python": "{}.{}".format(*sys.version_info)}


async def greet(stream: ByteStream, reader: FrameReader, secret: bytes, binding: str, wishes: Wishes) -> Offer:
    """Shake hands as the agent: prove who it is, have the worker prove it, and hear what that has.

    Raises:
        RefusedError: one of both does not want the other.
        GarbageError: the other end is no worker.
    """
    ours = nonce()
    await _say(stream, {"protocol": PROTOCOL, "nonce": ours})
    said = await _hear(reader)
    _check_protocol(said, "the worker")
    shared = (binding, ours, _text(said, "nonce"))
    terms = json.dumps({**versions(), **asdict(wishes)})
    await _say(stream, {"terms": terms, "proof": proof(secret, _AGENT, *shared, terms)})
    reader.longest = LONGEST_WELCOME
    said = await _hear(reader)
    terms = _text(said, "terms")
    if not is_proved(said.get("proof"), secret, _WORKER, *shared, terms):
        raise RefusedError("it does not have the secret that this side has, or somebody is in between")
    found = from_json(terms.encode())
    _check_versions(found, "the worker")
    return _made(Offer, found)


async def admit(stream: ByteStream, reader: FrameReader, secret: bytes, binding: str, offer: Offer) -> Wishes:
    """Shake hands as the worker. Raises what `greet` does; whom it refuses it has told."""
    try:
        said = await _hear(reader)
        _check_protocol(said, "the agent")
        ours = nonce()
        shared = (binding, _text(said, "nonce"), ours)
        await _say(stream, {"protocol": PROTOCOL, "nonce": ours})
        said = await _hear(reader)
        terms = _text(said, "terms")
        if not is_proved(said.get("proof"), secret, _AGENT, *shared, terms):
            raise RefusedError("it has not the secret that the worker has, or somebody is in between")
        found = from_json(terms.encode())
        _check_versions(found, "the agent")
        wishes = _made(Wishes, found)
    except (RefusedError, GarbageError) as error:
        await stream.send(frame(Kind.REFUSE, 0, str(error).encode()[:1000]))
        raise
    terms = json.dumps({**versions(), **asdict(offer)})
    await _say(stream, {"terms": terms, "proof": proof(secret, _WORKER, *shared, terms)})
    return wishes


async def _say(stream: ByteStream, said: Mapping[str, Any]) -> None:
    await stream.send(frame(Kind.GREET, 0, as_json(said)))


async def _hear(reader: FrameReader) -> dict[str, Any]:
    header, body = await reader.next()
    if header.kind is Kind.REFUSE:
        raise RefusedError(f"the worker has refused: {body.decode(errors='replace')}")
    if header.kind is not Kind.GREET:
        raise GarbageError(f"a {header.kind.name}, where a handshake should be")
    return from_json(body)


def _text(said: Mapping[str, Any], name: str) -> str:
    found = said.get(name)
    if not isinstance(found, str) or not found.isascii():  # all that either side says there is
        raise GarbageError(f"a handshake without {name!r}")
    return found


def _check_protocol(said: Mapping[str, Any], who: str) -> None:
    if (theirs := said.get("protocol")) != PROTOCOL:
        raise RefusedError(f"{who} speaks version {theirs!r:.20} of the protocol, and this side version {PROTOCOL}")


def _check_versions(found: Mapping[str, Any], who: str) -> None:
    for name, ours in versions().items():
        if (theirs := found.get(name)) != ours:
            raise RefusedError(f"{who} has {name} {theirs!s:.40}, and this side {ours}; install the same on both")


def _made(kind: type[T], found: Mapping[str, Any]) -> T:
    try:
        return kind(**{one.name: found[one.name] for one in fields(kind)})
    except (KeyError, TypeError, ValueError) as error:
        raise GarbageError(f"terms that cannot be understood: {error}") from None
