"""Digest of a tool and its arguments, to which an approval is bound."""

from collections.abc import Mapping
from typing import Any

from langchain_core.tools import BaseTool

from callboard._util._canonical import digest, place_of


def digest_of(tool: BaseTool, args: Mapping[str, Any]) -> str:
    """Return the digest of a tool and its arguments; raise `ValueError` if an argument has no JSON form."""
    # Argument names that begin with "%" are escaped within "args"; these three fixed names need no escape.
    return digest({"args": args, "name": tool.name, "runs": runs_in(tool)})


def runs_in(tool: BaseTool) -> str:
    """Return the names of the tool's class and function, the same in any process.

    The tool's name alone would not do: middleware may replace a tool by another tool of the same name.
    """
    found = getattr(tool, "coroutine", None) or getattr(tool, "func", None)
    return " ".join(place_of(one) for one in (type(tool), found) if one is not None)
