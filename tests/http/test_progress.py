"""Progress reports of a body for observers of the call."""

import re
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import CallPolicy, ToolNode, observe
from callboard.testing import tool_call
from callboard_actors.http import HttpBounds, HttpTools

from ._world import LOOPBACK, WAIT, Site

pytestmark = pytest.mark.real_clock

PART = 1000


async def told_of(url: str, policy: CallPolicy | None = None, **options: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Return the message of a page and the progress reports of its call."""
    node = ToolNode([HttpTools(allow=LOOPBACK, retries=0, **options)], policies={"fetch": policy or CallPolicy()})
    told: list[dict[str, Any]] = []
    with anyio.fail_after(WAIT), observe(lambda one: told.append(one.facts) if one.what == "progress" else None):
        found = await node.ainvoke([tool_call("fetch", "1", url=url)])
    return found["messages"][0], told


async def test_it_is_told_how_much_of_a_body_there_is(site: Site, tmp_path: Path) -> None:
    """Progress counts received bytes, and shows the total if the server sends a length."""
    message, told = await told_of(site.url("/parts", count=5, each=0.07, length=5 * PART), downloads=tmp_path)

    assert message.artifact["size"] == 5 * PART
    assert told[-1] == {"done": 5 * PART, "total": 5 * PART}
    assert [one["done"] for one in told] == sorted({one["done"] for one in told})
    assert len(told) >= 2


async def test_a_server_that_says_no_length_or_none_that_can_be_is_told_of_all_the_same(site: Site) -> None:
    """Without a length only the received bytes are reported. Of a compressed body, compressed bytes are counted."""
    _, told = await told_of(site.url("/parts", count=2, each=0.0))
    _, packed = await told_of(site.url("/bomb", layers=2), bounds=HttpBounds(max_bytes=10_000_000))

    assert told[-1] == {"done": 2 * PART}
    assert 0 < packed[-1]["done"] <= packed[-1]["total"] < 5000


async def test_a_body_of_many_parts_tells_no_more_than_a_few_a_second(site: Site) -> None:
    """An observer may log each report, so reports are limited to a few per second."""
    _, told = await told_of(
        site.url("/parts", count=1000, each=0.0, length=1000 * PART), bounds=HttpBounds(max_bytes=2_000_000)
    )

    assert told[-1]["done"] == 1000 * PART
    assert len(told) < 200


async def test_a_body_that_comes_slowly_is_no_idle_call(site: Site) -> None:
    """Each part resets the idle timeout, which is for servers that send nothing at all."""
    policy = CallPolicy(idle_timeout=0.75)
    slow, _ = await told_of(site.url("/parts", count=9, each=0.1, length=9 * PART), policy)
    silent, _ = await told_of(site.url("/parts", count=2, each=30), policy)

    assert slow.artifact["size"] == 9 * PART
    assert "has no answer: it was not there within 0.6" in silent.text


async def test_signs_of_life_put_off_no_timeout_of_the_whole_call(site: Site) -> None:
    """A body without end may use four fifths of the call's timeout, so that the model still gets an answer."""
    message, _ = await told_of(site.url("/slow", case=site.case()), CallPolicy(timeout=1.5, idle_timeout=0.75))
    found = re.search(r"has no answer: it was not there within ([0-9.]+) s", message.text)

    assert found is not None, message.text
    assert 0.75 < float(found[1]) < 1.5
