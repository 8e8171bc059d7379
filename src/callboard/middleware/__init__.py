"""Links around a tool call, for `ToolNode(middleware=[...])`: each takes the request and what comes next."""

from callboard._call import note
from callboard.middleware._retry import Retry

__all__ = ["Retry", "note"]
