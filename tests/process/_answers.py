"""Functions whose results and exceptions test what a confined worker can send back."""

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pydantic import BaseModel
from typing_extensions import TypedDict


@dataclass
class Point:
    x: int
    y: float = 0.5


class Place(BaseModel):
    name: str
    points: list[Point]


class Row(TypedDict):
    when: datetime
    price: Decimal


def point() -> Point:
    return Point(1)


async def place() -> Place:
    return Place(name="here", points=[Point(1), Point(2)])


def row() -> Row:
    return {"when": datetime(2026, 1, 2, tzinfo=UTC), "price": Decimal("1.10")}


def by_number() -> dict[int, tuple[int, ...]]:
    return {1: (2, 3)}


def text_as_bytes() -> bytes:
    return b"text"


def nothing() -> None:
    return None


def without_annotation():
    return {"one": (1, 2.5, None, True), 2: {"three"}}


def unknown_annotation() -> "NoSuchName":  # noqa: F821
    return [1]


def opaque() -> Any:
    return object()


def picture() -> Any:
    return {"png": b"\x89PNG\xff"}


def deep() -> Any:
    nested: list[Any] = []
    for _ in range(2_000):
        nested = [nested]
    return nested


def not_a_point() -> Point:
    return {"x": "no number"}  # type: ignore[return-value]


def give(value: Any) -> Any:
    return value


def numbers() -> list[int]:
    return [1]


class OwnError(Exception):
    """Exception class that the parent process must not construct by itself."""


class StrangeError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


ERRORS: dict[str, Exception] = {
    "value": ValueError("wrong", 1),
    "key": KeyError("missing"),
    "os": FileNotFoundError(2, "No such file or directory", "/x"),
    "own": OwnError("of mine"),
    "strange": StrangeError(),
    "group": ExceptionGroup("several", [ValueError("one")]),
    "unicode": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
    "stop": StopIteration(1),
    "long": ValueError("x" * 100_000),
}


def fail(name: str) -> None:
    print("before it")
    raise ERRORS[name]
