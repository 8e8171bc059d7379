"""Bodies on other machines: `callboard worker module:tools` serves them there, `RemoteEngine` sends them, over TCP.

    engine = RemoteEngine(["worker-1:7000", "worker-2:7000"], tls="ca.pem")
    node = ToolNode([render], policies={"render": CallPolicy(runs_in=engine)})

On asyncio and trio; both sides prove that they have the same secret before anything else is said.
"""

from typing import TYPE_CHECKING

from callboard_actors._on_demand import on_demand

# The workers of a worker load this package, too, and would pay for what it imports.
if TYPE_CHECKING:
    from callboard_actors.remote._engine import RemoteEngine as RemoteEngine

__all__ = ["RemoteEngine"]

__getattr__ = on_demand(__name__, {"RemoteEngine": "_engine"})
