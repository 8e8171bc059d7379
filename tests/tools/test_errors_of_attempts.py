"""The event of an ended call has the error behind its last attempt's message, and no error of an earlier attempt."""

import logging
from typing import Any

import anyio
import pytest
from langchain_core.tools import tool

from callboard import CallEvent, ToolInvocationError, ToolNode, observe, tool_call
from callboard.testing import calls


@tool
async def half(number: int) -> str:
    """Return half of an even number."""
    if number % 2:
        raise ValueError(f"{number} is odd")
    return str(number // 2)


def attempting(*numbers: Any) -> Any:
    """Return middleware that makes an attempt with each number, whatever came of the one before."""

    async def attempt_each(request: Any, call_next: Any) -> Any:
        for number in numbers:
            result = await call_next(request.override(tool_call={**request.tool_call, "args": {"number": number}}))
        return result

    return attempt_each


async def text_and_error(*numbers: Any) -> tuple[str, BaseException | None]:
    """Return the text of the call's message and the error in its last event."""
    ends: list[BaseException | None] = []

    def note(event: CallEvent) -> None:
        if event.phase == "ended":
            ends.append(event.error)

    node = ToolNode([half], awrap_tool_call=attempting(*numbers), handle_tool_errors=True)
    with anyio.fail_after(20), observe(note):
        [message] = await node.ainvoke([calls(("half", {"number": 0}))])
    [error] = ends
    return message.content, error


@pytest.mark.parametrize("failed", ["a word", 3], ids=["wrong arguments", "an error"])
async def test_a_call_that_succeeds_after_a_failed_attempt_has_no_error(failed: Any) -> None:
    assert await text_and_error(failed, 4) == ("2", None)


async def test_a_call_has_the_error_of_its_last_attempt() -> None:
    _, error = await text_and_error("a word", 3)
    assert isinstance(error, ValueError)
    assert str(error) == "3 is odd"
    _, error = await text_and_error(3, "a word")
    assert isinstance(error, ToolInvocationError)


async def test_an_error_that_became_a_message_is_in_the_log_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    async def divide(number: int) -> float:
        """Divide 1 by a number."""
        return 1 / number

    with anyio.fail_after(5), caplog.at_level(logging.DEBUG, "callboard"):
        await ToolNode([divide], handle_tool_errors=True).ainvoke([tool_call("divide", number=0)])
    assert "of 'divide' became a message: ZeroDivisionError" in caplog.text
    assert ", in divide\n" in caplog.text
