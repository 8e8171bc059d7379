"""What LangGraph's savers on PostgreSQL do not offer: to forget the values that a checkpoint is stored again without.

They keep a value for as long as its thread, by its version. The messages of a thin checkpoint would stay, and a
thread would take space by the square of its turns.
"""

import sys
from collections.abc import Sequence
from typing import Any

from langgraph.checkpoint.base import ChannelVersions, Checkpoint

_FORGET = """
DELETE FROM checkpoint_blobs WHERE thread_id = %s AND checkpoint_ns = %s AND channel = %s AND version = %s
"""

_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8 AS now"

_CLASSES = (
    ("langgraph.checkpoint.postgres", "PostgresSaver"),
    ("langgraph.checkpoint.postgres.aio", "AsyncPostgresSaver"),
)

Value = tuple[str, str, str, str]
"""Where a value is: its thread, namespace, channel and version."""


def keeps_values(saver: object) -> bool:
    """Whether it is such a saver; whoever has one has loaded its module."""
    loaded = [getattr(sys.modules[module], name) for module, name in _CLASSES if module in sys.modules]
    return isinstance(saver, tuple(loaded))


def gone_values(thread_id: str, namespace: str, checkpoint: Checkpoint, versions: ChannelVersions) -> list[Value]:
    """The values that were to be stored, and that the checkpoint does not have."""
    gone = [name for name in versions if name not in checkpoint["channel_values"]]
    return [(thread_id, namespace, name, str(checkpoint["channel_versions"][name])) for name in gone]


def forget(saver: Any, values: Sequence[Value]) -> None:
    """Have a sync saver forget values."""
    with saver._cursor() as cursor:
        cursor.executemany(_FORGET, values)


async def aforget(saver: Any, values: Sequence[Value]) -> None:
    """Have an async saver forget values."""
    async with saver._cursor() as cursor:
        await cursor.executemany(_FORGET, values)


def clock(saver: Any) -> float:
    """Read the clock of the server of a sync saver, in seconds since 1970."""
    with saver._cursor() as cursor:
        return float(cursor.execute(_CLOCK).fetchone()["now"])


async def aclock(saver: Any) -> float:
    """Read the clock of the server of an async saver, in seconds since 1970."""
    async with saver._cursor() as cursor:
        await cursor.execute(_CLOCK)
        return float((await cursor.fetchone())["now"])
