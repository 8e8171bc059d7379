"""The examples with `RayEngine` in the README and in the reference run on a cluster; run by `tests.ray`."""

import os
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

import tests.ray._tools as tools  # absolute import, because Ray workers import the module by this name
from callboard.testing import calls
from tests.doc_fragments._surroundings import blocks_of
from tests.test_doc_fragments import compile_block

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive]

WAIT = 90.0
PAGES = ("actors/README.md", "docs/reference/actors.md")
BLOCKS = [block for page in PAGES for block in blocks_of(page, "python no-run") if "RayEngine(" in block.code]


@pytest.fixture
def eight_processors(cluster: Any) -> Iterator[None]:
    """Add a node: the examples start eight Ray actors, and each takes one processor."""
    node = cluster.add_node(num_cpus=8, node_ip_address="127.0.0.1", object_store_memory=100 * 2**20)
    try:
        yield
    finally:
        cluster.remove_node(node)


async def test_the_example_of_each_page_runs_on_the_cluster(
    eight_processors: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address "auto" means the cluster of this machine; the tool runs in another process."""
    monkeypatch.setenv("RAY_ADDRESS", os.environ["CALLBOARD_TEST_RAY"])
    assert [block.page for block in BLOCKS] == [*PAGES]
    for block in BLOCKS:
        names: dict[str, Any] = {"__name__": "a_page", "crunch": tools.crunch, "tools": [tools.crunch]}
        with anyio.fail_after(WAIT):
            if (waits := eval(compile_block(block), names)) is not None:
                await waits
            async with names["node"] as node:
                messages = await node.ainvoke([calls(("crunch", {"rows": 3}))])
        doubled, pid = messages[-1].content.split()
        assert doubled == "6"
        assert int(pid) != os.getpid()
