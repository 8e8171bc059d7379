"""How long a test may take before it is ended."""

import anyio
import pytest


def _timeout_of(request: pytest.FixtureRequest) -> float | None:
    mark = request.node.get_closest_marker("timeout")
    return None if mark is None else mark.args[0]


@pytest.mark.hangs_after(300)
def test_a_sync_test_has_the_time_of_its_marker(request: pytest.FixtureRequest) -> None:
    """A cancel scope cannot end it, and pytest-timeout would after its own 120 s."""
    assert _timeout_of(request) == 320


@pytest.mark.real_clock
@pytest.mark.hangs_after(300)
async def test_an_async_test_on_a_real_clock_has_the_time_of_its_marker(request: pytest.FixtureRequest) -> None:
    await anyio.lowlevel.checkpoint()
    assert _timeout_of(request) == 320


@pytest.mark.hangs_after(1)
def test_a_short_time_of_its_marker_does_not_shorten_that_of_all_tests(request: pytest.FixtureRequest) -> None:
    assert _timeout_of(request) == float(request.config.getini("timeout"))


@pytest.mark.hangs_after(1e6)
async def test_the_marker_of_a_test_on_a_virtual_clock_gives_it_no_real_time(request: pytest.FixtureRequest) -> None:
    await anyio.sleep(1e5)
    assert _timeout_of(request) is None
