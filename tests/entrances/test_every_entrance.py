"""One bad value ends one call, in words: a table of all entrances and of what cannot be stored, sent or shown.

A web page is an entrance, too; its table is `tests/http/test_hostile_answers.py`.
"""

import re
from pathlib import Path

import pytest

from callboard import create_agent, create_react_agent
from tests.helpers import watch_loop

from . import _entrances as entrances
from ._values import COLUMNS, LONG

pytestmark = [pytest.mark.real_clock, pytest.mark.hangs_after(100)]
MOST = 0.02
"""Seconds for which the event loop may be held."""
MOST_AT = {"result of an MCP server": 0.04}
"""The same at an entrance where the SDK of MCP reads a message in one call: 8 ms for each MB, here 2 MB of JSON."""
TURNS = 8

UNSTORED = "StorageError: .* cannot store .* is a value of the type object"
UNSTORED_INTEGER = "StorageError: .* cannot store .* is an integer of 65 bits"
UNSTORED_LEVELS = "StorageError: .* cannot store .* is a value of the type list"
LOST, LOST_INTEGER = (
    "its result is lost, because the database cannot store it: .* is " + kind_of_value
    for kind_of_value in ("a value", "an integer of 65")
)
REFUSED_ARGUMENTS = (
    "arguments have half of a surrogate pair",
    "took a float",
    "arguments have an integer of 65 bits",
    UNSTORED,
    "arguments have more than 10000000 characters",
    "arguments are nested more than 100 levels",
)
RESULTS = (
    r"half \?",
    "NaN",
    "18446744073709551616",
    "<object object",
    "\x1b",
    "has run and finished, but its result is lost",
)
ARTIFACTS = ("gave", "gave", LOST_INTEGER, LOST, "gave", LOST)
BLOCKS = ("took a int", "took a int", UNSTORED_INTEGER, UNSTORED, "took a int", UNSTORED_LEVELS)
RECORDED = ("ok", "ok", "ok", "ok", "rejected", "rejected")
NO_MESSAGE = "answered with what is no message of MCP"

TABLE = {
    # entrance:                       (surrogate, NaN, 65 bits, object, 16 MB, levels)
    "arguments, create_react_agent": (entrances.arguments(create_react_agent), REFUSED_ARGUMENTS),
    "arguments, create_agent": (entrances.arguments(create_agent), REFUSED_ARGUMENTS),
    "result, create_react_agent": (entrances.result(create_react_agent), RESULTS),
    "result, create_agent": (entrances.result(create_agent), RESULTS),
    "artifact, create_react_agent": (entrances.artifact(create_react_agent), ARTIFACTS),
    "artifact, create_agent": (entrances.artifact(create_agent), ARTIFACTS),
    "error": (
        entrances.error,
        (r"half \\ud83d", "nan", "18446744073709551616", "<object object", r"x1b\[3", "whose text cannot be made"),
    ),
    "wrapper": (entrances.wrapper, ("wrapped", "wrapped", LOST_INTEGER, LOST, "wrapped", LOST)),
    "reply, create_react_agent": (entrances.reply(create_react_agent), BLOCKS),
    "reply, create_agent": (entrances.reply(create_agent), BLOCKS),
    "hook": (entrances.hook, BLOCKS),
    "config": (entrances.config, ("done",) * 6),
    "answer of a person": (
        entrances.answer,
        (
            "The answer has .* with half of a surrogate pair",
            "heard a float",
            UNSTORED_INTEGER,
            UNSTORED,
            "heard a str",
            UNSTORED_LEVELS,
        ),
    ),
    "stored row": (
        entrances.row,
        (
            "holds a value that cannot be read: .* invalid UTF-8",
            "read a float",
            "holds a value that cannot be read",
            r"stored_types=\[system\]",
            "read a str",
            "holds a value that cannot be read: .* [Rr]ecursion",
        ),
    ),
    "recorder": (entrances.recorder(capture=False), RECORDED),
    "recorder of values": (entrances.recorder(capture=True), RECORDED),
    "recording": (entrances.recording, (*("read 2 calls",) * 5, "line 2: damaged: the line is not a JSON object")),
    "arguments for an MCP server": (
        entrances.mcp_arguments,
        (
            "cannot be sent: it has half of a surrogate pair",
            "cannot be sent: it has a number or a cycle",
            "18446744073709551616",
            "cannot be sent: it has a value without a form in JSON",
            "more than 10000000 characters",
            "nested more than 100 levels",
        ),
    ),
    "result of an MCP server": (
        entrances.mcp_result,
        (NO_MESSAGE, "bad", "bad", "<object", "a message of more than 16777216 bytes", NO_MESSAGE),
    ),
    "result of an MCP server over HTTP": (
        entrances.mcp_result_over_http,
        (
            "Failed to parse JSON",
            "bad",
            "bad",
            "<object",
            "a message of more than 16777216 bytes",
            "Failed to parse JSON .*recursion limit",
        ),
    ),
    "result of a served tool": (
        entrances.service_result,
        ("cannot be sent: it has half of a surrogate pair", *RESULTS[1:]),
    ),
}


@pytest.mark.parametrize("value", COLUMNS)
@pytest.mark.parametrize("entrance", TABLE)
async def test_a_bad_value_ends_one_call_in_words(entrance: str, value: str, tmp_path: Path) -> None:
    """Each entrance runs a call beside it, which ends as if it were alone."""
    enter, row = TABLE[entrance]
    outcome = await enter(value, tmp_path)
    assert re.search(row[COLUMNS.index(value)], outcome, re.DOTALL), outcome[:500]
    assert value == "16 MB" or len(outcome) < 500
    outcome.encode()


# LangGraph's serializers and savers, and what reads and writes JSON, take 16 MB in one C function, for 20 to 100 ms;
# the page on performance has their times.
# Opening a client of HTTP makes a TLS context, for 20 ms.
AT_ONCE = (
    *("result, ", "artifact", "wrapper", "reply", "hook", "config", "stored row"),
    *("recording", "answer of a person", "result of a served tool"),
)
WATCHED = [
    (entrance, value)
    for entrance in TABLE
    for value in (*LONG, "16 MB")
    if not entrance.endswith("over HTTP") and (value != "16 MB" or not entrance.startswith(AT_ONCE))
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("entrance", "value"), WATCHED)
async def test_no_long_or_deep_value_holds_the_loop(entrance: str, value: str, tmp_path: Path) -> None:
    """The shortest of some turns counts: the first one imports modules, and a machine with other work adds to each."""
    enter, _ = TABLE[entrance]
    limit = MOST_AT.get(entrance, MOST)
    holds: list[float] = []
    while len(holds) < TURNS and min(holds, default=limit) >= limit:
        path = tmp_path / str(len(holds))
        path.mkdir()
        async with watch_loop() as hold:
            await enter(value, path)
        holds.append(hold.longest)
    assert min(holds) < limit
