"""Read-only view of the conversations in a database, written by callboard or by LangGraph.

Threads            a database: its conversations and their contents; a checkpointer for agents
StoredThread       a conversation at one moment: messages, calls, questions
Exchange           a message, with the results of the calls that it requests
CallState          state of a call
unanswered_calls   the calls of a conversation that have no result
masked             a URL without its password, for display
"""

from typing import TYPE_CHECKING

from callboard._util._lazy import lazy_exports

if TYPE_CHECKING:
    from callboard.conversations._database import masked as masked
    from callboard.threads._stored_thread import CallState as CallState
    from callboard.threads._stored_thread import StoredThread as StoredThread
    from callboard.threads._stored_thread import Threads as Threads
    from callboard.tools._unanswered import Exchange as Exchange
    from callboard.tools._unanswered import unanswered_calls as unanswered_calls

_HOMES = {
    "callboard.threads._stored_thread": ("CallState", "StoredThread", "Threads"),
    "callboard.conversations._database": ("masked",),
    "callboard.tools._unanswered": ("Exchange", "unanswered_calls"),
}

__getattr__, __dir__, __all__ = lazy_exports(__name__, _HOMES)
