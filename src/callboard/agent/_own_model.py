"""What the body of a tool may know of the agent that calls it: its model."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from langchain_core.language_models import BaseChatModel

_lent: ContextVar[BaseChatModel | None] = ContextVar("callboard_agent_model", default=None)


def agent_model() -> BaseChatModel | None:
    """The chat model of the agent whose call runs here, without its tools; of several around it, the nearest.

    `None` where nobody knows one: outside of an agent of callboard, in a process of an engine, and in an agent that
    chooses its model for each step, or whose model is no chat model with its tools and settings bound to it.
    """
    return _lent.get()


@contextmanager
def lending(model: BaseChatModel | None) -> Generator[None]:
    """Have the calls that are made in the block know the model of their agent."""
    before = _lent.set(model)
    try:
        yield
    finally:
        _lent.reset(before)
