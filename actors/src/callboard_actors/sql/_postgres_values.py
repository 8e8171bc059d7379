"""Values of PostgreSQL that Python has none for: they are the text by which the server writes them."""

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
"""In an interval: how many days these are depends on where they begin."""
_PLAIN = (str, bytes, int, float, decimal.Decimal, dt.date, dt.time, dt.timedelta, uuid.UUID, dict, type(None))
"""What every checkpointer can store, and a program needs no driver for."""


class _OrText(Loader):
    """Reads what can be read: neither infinity nor a time before our era, nor what a query has set a style for."""

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
    """Have a connection read all times, and take mappings as JSON."""
    for name, loader in _LOADERS.items():
        driver.adapters.register_loader(name, loader)
    driver.adapters.register_dumper(dict, JsonbDumper)


def plain(value: object) -> object:
    """A value that psycopg has made of what came in its binary form: ranges and the like as texts."""
    if isinstance(value, list):
        return [plain(one) for one in cast("list[object]", value)]
    return value if isinstance(value, _PLAIN) else str(value)
