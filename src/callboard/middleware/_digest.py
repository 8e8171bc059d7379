"""What an approval is good for: one tool, and arguments that mean the same."""

from collections.abc import Mapping
from typing import Any

from langchain_core.tools import BaseTool

from callboard._canonical import digest, place_of


def digest_of(tool: BaseTool, args: Mapping[str, Any]) -> str:
    """The digest of a tool and its arguments, as `callboard._canonical` has it.

    Raises:
        ValueError: for an argument of which there is no JSON: whether it has changed, nobody could say.
    """
    # Arguments that begin with "%" are escaped as in any mapping; the three names here do not.
    return digest({"args": args, "name": tool.name, "runs": runs_in(tool)})


def runs_in(tool: BaseTool) -> str:
    """What a tool consists of, by the names of its class and its function; the same in any process.

    Two tools may have one name, and a middleware may put the one in the other's place.
    """
    found = getattr(tool, "coroutine", None) or getattr(tool, "func", None)
    return " ".join(place_of(one) for one in (type(tool), found) if one is not None)
