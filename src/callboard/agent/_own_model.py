"""Access to the agent's model from the body of a tool."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from langchain_core.language_models import BaseChatModel

_lent: ContextVar[BaseChatModel | None] = ContextVar("callboard_agent_model", default=None)


def agent_model() -> BaseChatModel | None:
    """Return the chat model, without tools, of the agent that runs the current call; of nested agents, the innermost.

    Returns `None` outside of an agent of callboard and in a process of an engine. Returns `None` also if the agent
    chooses its model for each step. The same holds for a model that is not a chat model with bound tools and settings.
    """
    return _lent.get()


@contextmanager
def lending(model: BaseChatModel | None) -> Generator[None]:
    """Provide the agent's model to calls in the block."""
    before = _lent.set(model)
    try:
        yield
    finally:
        _lent.reset(before)
