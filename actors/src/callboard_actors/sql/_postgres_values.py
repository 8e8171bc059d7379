"""PostgreSQL values that Python cannot represent: they become the text that the server writes."""

import datetime as dt
import decimal
import uuid
from typing import Any, cast

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.types.datetime import (
    DateLoader,
    IntervalLoader,
    TimeLoader,
    TimestampLoader,
    TimestamptzLoader,
    TimetzLoader,
)
from psycopg.types.json import JsonbDumper

_TIMES: dict[str, type[Loader]] = {
    "date": DateLoader,
    "time": TimeLoader,
    "timetz": TimetzLoader,
    "timestamp": TimestampLoader,
    "timestamptz": TimestamptzLoader,
    "interval": IntervalLoader,
}
_WITHOUT_DAYS = (b"year", b"mon")
"""Units of an interval without a fixed number of days."""
_PLAIN = (str, bytes, int, float, decimal.Decimal, dt.date, dt.time, dt.timedelta, uuid.UUID, dict, type(None))
"""Types that every checkpointer can store and that need no driver to read."""


class _OrText(Loader):
    """Loader that falls back to text: for infinity, times before year 1, and styles that a query has set."""

    kind: type[Loader]

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        self._reader = self.kind(oid, context)

    def load(self, data: Buffer) -> object:
        written = bytes(data)
        if self.kind is IntervalLoader and any(unit in written for unit in _WITHOUT_DAYS):
            return written.decode()
        try:
            return self._reader.load(data)
        except (psycopg.DataError, psycopg.NotSupportedError, NotImplementedError, OverflowError):
            return written.decode(errors="replace")


_LOADERS = {name: type(kind.__name__, (_OrText,), {"kind": kind}) for name, kind in _TIMES.items()}


def add_adapters(driver: psycopg.Connection[Any]) -> None:
    """Register loaders for all times, and a dumper of mappings as JSON, on a connection."""
    for name, loader in _LOADERS.items():
        driver.adapters.register_loader(name, loader)
    driver.adapters.register_dumper(dict, JsonbDumper)


def plain(value: object) -> object:
    """Return a plain value; ranges and similar types become texts."""
    if isinstance(value, list):
        return [plain(one) for one in cast("list[object]", value)]
    return value if isinstance(value, _PLAIN) else str(value)
