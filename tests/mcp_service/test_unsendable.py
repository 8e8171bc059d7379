"""Results that JSON in UTF-8 cannot carry are errors of their calls; results agree with their schemas."""

import math
from typing import Any

import pytest
from pydantic import BaseModel, Field

from ._clients import client_of, in_both_eras, text_in


class Journey(BaseModel):
    start: str = Field(alias="from")


class Weight(BaseModel):
    pounds: float


async def plan() -> Journey:
    """Plan a journey."""
    return Journey(**{"from": "Rome"})


async def weigh() -> Weight:
    """Weigh a trunk."""
    return Weight(pounds=math.nan)


async def name() -> str:
    """Name a file."""
    return "half \ud83d"


async def fail() -> str:
    """Fail."""
    raise OSError("half \ud83d")


@in_both_eras
@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        (weigh, "The result of 'weigh' cannot be sent: it has a number"),
        (name, r"surrogate pair ('\ud83d')"),
        (fail, "half"),
    ],
)
async def test_a_result_that_cannot_be_sent_is_an_error_of_its_call(era: str, tool: Any, reason: str) -> None:
    async with client_of([tool, plan], era) as client:
        result = await client.call_tool(tool.__name__, {})
        assert result.is_error
        assert reason in text_in(result)
        text_in(result).encode()
        assert (await client.call_tool("plan", {})).structured_content == {"from": "Rome"}
        [schema] = [tool.output_schema for tool in (await client.list_tools()).tools if tool.name == "plan"]
        assert schema is not None
        assert schema["required"] == ["from"]


async def test_a_description_that_cannot_be_sent_is_refused_with_the_name_of_the_tool() -> None:
    async def odd() -> None: ...

    odd.__doc__ = "Half \ud83d."
    with pytest.raises(ValueError, match="'odd' cannot be served"):
        async with client_of([odd], "legacy"):
            pass
