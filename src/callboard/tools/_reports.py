"""What whoever runs a batch is told of its calls while they run."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableConfig

from callboard.tools._call_output import Output

OnClaim = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""Takes the key of a call."""
OnAsk = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""Takes a call's key and its record, with what it asks."""
OnFinish = Callable[[str, ToolCall, Output], Awaitable[None]]
"""Takes a call's key, the call and its output."""

CallBody = Callable[[RunnableConfig | None], Awaitable[Output]]
"""Runs one call, with a config of its own or that of its batch."""
