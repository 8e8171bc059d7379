"""Tools and actors on other machines: `callboard worker module:tools` serves them, `RemoteEngine` calls them over TCP.

    engine = RemoteEngine(["worker-1:7000", "worker-2:7000"], tls="ca.pem")
    node = ToolNode([render], policies={"render": CallPolicy(runs_in=engine)})

Works on asyncio and trio. Both sides prove that they share a secret before they exchange anything else.
"""

from typing import TYPE_CHECKING

from callboard_actors._util._on_demand import on_demand

# Loaded on first use: the worker processes of `callboard worker` import this package, too, and do not need the engine.
if TYPE_CHECKING:
    from callboard_actors.remote._engine import RemoteEngine as RemoteEngine

__all__ = ["RemoteEngine"]

__getattr__ = on_demand(__name__, {"RemoteEngine": "callboard_actors.remote._engine"})
