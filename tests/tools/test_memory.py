"""Memory of a waiting call: a host of agents may hold very many of them."""

import pytest

from tests.helpers import weighed

from ._weight import LIMITS

AT_MOST = 6 * 1024
"""Limit in bytes. A call of LangGraph takes 9.7 KB on asyncio."""


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.exhaustive
def test_a_waiting_call_weighs_at_most_6_kilobytes(backend: str, limit: str) -> None:
    """At this size 100,000 waiting calls need 600 MB, whether they wait in their bodies or for a place."""
    assert 0 < weighed("tests.tools._weight", backend, limit) <= AT_MOST
