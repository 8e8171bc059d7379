"""Deletion of single channel values, which LangGraph's PostgreSQL savers lack.

These savers keep each version of a value as long as its thread. If a checkpoint is stored again without its messages,
the old messages remain. The size of a thread would grow with the square of its turns.
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
"""Key of a stored value: thread, namespace, channel and version."""


def keeps_values(saver: object) -> bool:
    """Return whether a saver is one of LangGraph's PostgreSQL savers."""
    # Looked up in `sys.modules`, not imported: the packages are optional, and an existing saver has loaded its module.
    loaded = [getattr(sys.modules[module], name) for module, name in _CLASSES if module in sys.modules]
    return isinstance(saver, tuple(loaded))


def gone_values(thread_id: str, namespace: str, checkpoint: Checkpoint, versions: ChannelVersions) -> list[Value]:
    """Return the keys of the values with a new version that the checkpoint does not contain."""
    gone = [name for name in versions if name not in checkpoint["channel_values"]]
    return [(thread_id, namespace, name, str(checkpoint["channel_versions"][name])) for name in gone]


def forget(saver: Any, values: Sequence[Value]) -> None:
    """Delete values with a sync saver."""
    with saver._cursor() as cursor:
        cursor.executemany(_FORGET, values)


async def aforget(saver: Any, values: Sequence[Value]) -> None:
    """Delete values with an async saver."""
    async with saver._cursor() as cursor:
        await cursor.executemany(_FORGET, values)


def clock(saver: Any) -> float:
    """Return the server's time in seconds since 1970, with a sync saver."""
    with saver._cursor() as cursor:
        return float(cursor.execute(_CLOCK).fetchone()["now"])


async def aclock(saver: Any) -> float:
    """Return the server's time in seconds since 1970, with an async saver."""
    async with saver._cursor() as cursor:
        await cursor.execute(_CLOCK)
        return float((await cursor.fetchone())["now"])
