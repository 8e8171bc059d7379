"""Number of callboard's own functions that a call runs. It does not depend on the machine, unlike a time.

A bound that fails says that the path of each call became longer. `python -m tests.way_of_a_call` prints the path. A
bound is lowered when the path becomes shorter, and raised only for a reason that the commit names.
"""

from typing import Any

import anyio
import pytest

from tests.way_of_a_call import functions_of_agent, functions_of_node

pytestmark = pytest.mark.real_clock


async def passing(request: Any, call_next: Any) -> Any:
    return await call_next(request)


@pytest.mark.parametrize(
    ("options", "first", "further"),
    [
        pytest.param({}, 74, 26, id="plain"),
        pytest.param({"timeout": 60.0}, 80, 32, id="with a timeout"),
        pytest.param({"middleware": [passing]}, 78, 31, id="with a wrapper"),
        pytest.param({"middleware": [passing], "timeout": 60.0}, 93, 46, id="with a wrapper and a timeout"),
    ],
)
async def test_a_call_runs_few_functions(options: dict[str, Any], first: int, further: int) -> None:
    with anyio.fail_after(30):
        one = await functions_of_node(1, **options)
        eleven = await functions_of_node(11, **options)
    assert one.total() <= first, one
    assert (eleven.total() - one.total()) / 10 <= further, eleven - one


async def test_a_turn_of_an_agent_runs_few_functions() -> None:
    with anyio.fail_after(30):
        one, eleven = await functions_of_agent(1), await functions_of_agent(11)
    assert one.total() <= 396, one
    assert (eleven.total() - one.total()) / 10 <= 28, eleven - one
