"""What a call weighs while it waits; an agent's host may hold very many of them."""

import pytest
from tests.helpers import weighed

from ._weight import LIMITS

AT_MOST = 6 * 1024
"""Bytes; LangGraph's call has 9.7 KB on asyncio."""


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.exhaustive
def test_a_waiting_call_weighs_at_most_6_kilobytes(backend: str, limit: str) -> None:
    """100,000 calls that wait are 600 MB, on either loop, whether for what their bodies do or for a place."""
    assert 0 < weighed("tests.tools._weight", backend, limit) <= AT_MOST
