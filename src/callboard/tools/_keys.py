"""Names of calls: keys in a batch, segments in a checkpoint namespace.

A model may write any text as an id. Different calls always get different names: otherwise an approval of one call could
run another. Usual ids are used unchanged; in other ids, only special characters are escaped.
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
"""Names of an agent's nodes. Their records are stored beside those of calls, so no key of a call may equal one."""

_LONGEST = 128
_IN_KEYS = re.compile(r"[%#\ud800-\udfff]")
"""Characters that are escaped in keys: `%` and `#`, which callboard adds itself, and surrogates, which UTF-8 cannot
encode."""
_IN_SEGMENTS = re.compile(r"[^!-$&-{}]")
"""Characters that are escaped in segments: all but printable ASCII, and `|`, `%`, `~`, which LangGraph or callboard
use."""


def keys_of(calls: Sequence[ToolCall]) -> list[str]:
    """Return the keys of a batch's calls without yielding to other tasks; see `naming`."""
    return at_once(naming(calls))


def naming(calls: Sequence[ToolCall]) -> Steps[list[str]]:
    """Return the keys of a batch's calls, in portions: the ids, with the index for a repeated id."""
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
    """Return the key of an id; it contains no `#`, and is not the name of a node."""
    found = call_id or ""
    if len(found) > _LONGEST:
        return _digest(found)
    # A call with such an id must not replace the record of an agent's node.
    if found in NODES:
        return _escape(found[0]) + found[1:]
    if found.isascii() and "%" not in found and "#" not in found:
        return found
    return _IN_KEYS.sub(_escaped, found)


def segment_of(key: str, number: int) -> str:
    """Return a key as a segment of a checkpoint namespace, of bounded length.

    `number` is the number of earlier batches of this run with the same keys.
    """
    # Most ids are identifiers, and this test is faster than any search.
    segment = key if key.isascii() and key.isidentifier() else _IN_SEGMENTS.sub(_escaped, key)
    if len(segment) > _LONGEST:
        segment = _digest(key)
    return f"{segment}~{number}" if number else segment


def _escaped(found: "re.Match[str]") -> str:
    return _escape(found[0])


def _escape(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode(errors="surrogatepass"))


def _digest(text: str) -> str:
    """Return a short name for a text that is too long. No escaped text begins with `%-`."""
    return f"%-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}"


def _shown(call_id: str | None) -> str:
    found = call_id or ""
    return repr(found if len(found) <= _LONGEST else f"{found[:_LONGEST]}...")
