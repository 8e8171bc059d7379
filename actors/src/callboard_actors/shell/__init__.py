"""Commands in a working directory, as tools: `Shell`.

    node = ToolNode([Shell("project", allow=["git", "ls", "pytest"])])

Each command runs in a worker process of the shell. A cancelled command dies with all processes that it has started;
other commands go on. Jobs run in the background until they end, are stopped, or the shell ends.
"""

from typing import TYPE_CHECKING

from callboard_actors._util._on_demand import on_demand

if TYPE_CHECKING:
    from callboard_actors.shell._shell import Shell as Shell

__all__ = ["Shell"]

__getattr__ = on_demand(__name__, {"Shell": "callboard_actors.shell._shell"})
