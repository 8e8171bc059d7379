"""The demo: a service, a database, an agent, and somebody who watches."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import anyio
from anyio import CancelScope
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from rich.console import Console

from callboard import Statistics, ToolNode, create_react_agent, observe
from callboard._cli._board import Board
from callboard._cli._database import temporary_database
from callboard._cli._http import HttpClient
from callboard._cli._service import running_service
from callboard._cli._tools import TOOLS, make_node
from callboard._cli._view import open_view, result_table
from callboard._cli._work import ModelUnavailableError, Work, make_work, real_model, request, scripted_model

_INTERRUPTED = 130
_FETCHES = 300
_FETCHES_OF_A_REAL_MODEL = 20


class DemoError(Exception):
    """The demo cannot go on, and the reader can do something about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for on the command line."""

    backend: Literal["asyncio", "trio"] | str
    fetches: int | None
    model: str | None
    seed: int


@dataclass(slots=True)
class Run:
    """What was measured."""

    board: Board = field(default_factory=lambda: Board(TOOLS))
    wall_clock: float = 0.0
    left_over: Sequence[str] = ()
    """The names of the tasks that were alive after the agent's run and not before it."""
    statistics: Statistics | None = None
    messages: Sequence[BaseMessage] = ()
    interrupted: bool = False
