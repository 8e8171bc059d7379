"""A warning is logged when an async tool with clean-up code is moved into a process, which may be killed."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import CallboardWarning, CallPolicy, ToolNode
from callboard.testing import tool_call
from callboard_actors.process import Processes
from callboard_actors.remote import RemoteEngine

from . import _cleans_up

SHIELDING = [_cleans_up.hold, _cleans_up.hold_by_the_name_of_the_package]


@pytest.mark.parametrize("tool", SHIELDING, ids=lambda tool: tool.__name__)
@pytest.mark.parametrize(
    "engine", [Processes, lambda: RemoteEngine(["127.0.0.1:1"], secret=b"s" * 32)], ids=["processes", "remote"]
)
def test_a_tool_with_clean_up_that_would_be_killed_is_warned_about(
    tool: Callable[..., Any], engine: Callable[[], Any]
) -> None:
    """The warning comes when the node is built, because a killed process can log nothing."""
    with pytest.warns(CallboardWarning, match=rf"'{tool.__name__}' uses cleanup\(\), and where it runs its process is"):
        ToolNode([tool], policies={tool.__name__: CallPolicy(runs_in=engine())})


def test_a_tool_without_clean_up_of_its_own_is_not() -> None:
    """The kernel closes files and connections, so no warning is needed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ToolNode([_cleans_up.plain], policies={"plain": CallPolicy(runs_in=Processes())})
        ToolNode([_cleans_up.hold])


@pytest.mark.real_clock
async def test_an_async_tool_in_a_process_is_killed_without_its_clean_up(tmp_path: Path) -> None:
    """As `choose-isolation.md` says, a killed tool does not clean up; in the event loop the same tool does."""
    for cleans_up, policy in ((False, CallPolicy(runs_in=(pool := Processes(workers=1)))), (True, CallPolicy())):
        folder = tmp_path / str(cleans_up)
        folder.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CallboardWarning)
            node = ToolNode([_cleans_up.hold], policies={"hold": policy})
        with anyio.fail_after(60):
            async with pool, anyio.create_task_group() as group:
                group.start_soon(node.ainvoke, [tool_call("hold", "1", folder=str(folder))])
                while not (folder / "began").exists():
                    await anyio.sleep(0.01)
                group.cancel_scope.cancel()

        assert (folder / "cleaned").exists() is cleans_up
