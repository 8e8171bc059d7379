"""What calls are named: in a batch by a key, in a checkpoint namespace by a segment.

A model writes ids as it likes. Whatever it writes, two calls have two names: an approval of one runs no other. The
usual ids are their own names; of the others as much is escaped as it takes.
"""

import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from operator import itemgetter

from langchain_core.messages import ToolCall

from callboard.exceptions import DuplicateCallIdWarning
from callboard.tools._portions import Steps, at_once, each

NODES = frozenset(
    ("__start__", "pre_model_hook", "agent", "tools", "post_model_hook", "generate_structured_response", "__end__")
)
"""Tasks of an agent's step beside its calls, whose records stand beside theirs."""

_LONGEST = 128
_IN_KEYS = re.compile(r"[%#\ud800-\udfff]")
"""What we put into them, and what UTF-8 has not."""
_IN_SEGMENTS = re.compile(r"[^!-$&-{}]")
"""All but printable ASCII, and of that what LangGraph or we put into namespaces: `|`, `%` and `~`."""


def keys_of(calls: Sequence[ToolCall]) -> list[str]:
    """The names of a batch's calls, all at once; see `naming`."""
    return at_once(naming(calls))


def naming(calls: Sequence[ToolCall]) -> Steps[list[str]]:
    """The names of a batch's calls: made of their ids, and of their places where the model used an id twice."""
    ids: list[str | None] = yield from each(itemgetter("id"), calls)
    repeated = {call_id for call_id, count in Counter(ids).items() if count > 1} if len(set(ids)) < len(ids) else ()
    for call_id in sorted(map(_shown, repeated)):
        warnings.warn(
            f"several calls of one batch have the id {call_id}; each runs and gets its own message, in order",
            DuplicateCallIdWarning,
            stacklevel=2,
        )
    keys = yield from each(_key, ids)
    if not repeated:
        return keys
    return [f"{key}#{index}" if ids[index] in repeated else key for index, key in enumerate(keys)]


def _key(call_id: str | None) -> str:
    """An id as a key; has no `#` in it, and is the name of no node."""
    found = call_id or ""
    if len(found) > _LONGEST:
        return _digest(found)
    if found in NODES:
        return _escape(found[0]) + found[1:]
    if found.isascii() and "%" not in found and "#" not in found:
        return found
    return _IN_KEYS.sub(_escaped, found)


def segment_of(key: str, number: int) -> str:
    """A key as a part of a namespace, of bounded length.

    Args:
        key: of a call in its batch.
        number: how many batches of this run had the same keys before.
    """
    # Most ids are identifiers, and to ask that is quicker than any search.
    segment = key if key.isascii() and key.isidentifier() else _IN_SEGMENTS.sub(_escaped, key)
    if len(segment) > _LONGEST:
        segment = _digest(key)
    return f"{segment}~{number}" if number else segment


def _escaped(found: "re.Match[str]") -> str:
    return _escape(found[0])


def _escape(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode(errors="surrogatepass"))


def _digest(text: str) -> str:
    """A name for what is too long for one; no escape begins like it."""
    return f"%-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}"


def _shown(call_id: str | None) -> str:
    found = call_id or ""
    return repr(found if len(found) <= _LONGEST else f"{found[:_LONGEST]}...")
