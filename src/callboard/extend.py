"""Extension point for engines: the protocol, and the context that travels with a body.

An engine (`callboard.Engine`) runs a `Body`. In the caller's task, `carried()` extracts the context of the call. In the
worker, `arrived()` attaches that context. `deliver()` dispatches the body's progress and log records in the caller's
process. `relayed()` forwards the context through a machine in between, to an engine of that machine. `Bodies` tracks
the running bodies of an engine that can be drained.
"""

from callboard._calls._call_context import NonsenseError as NonsenseError
from callboard._calls._call_context import arrived as arrived
from callboard._calls._call_context import carried as carried
from callboard._calls._call_context import deliver as deliver
from callboard._calls._call_context import relayed as relayed
from callboard._calls._draining import Bodies as Bodies
from callboard._records._policies import Body as Body
from callboard._records._policies import Engine as Engine
from callboard._records._policies import Seat as Seat
from callboard.exceptions import EngineError as EngineError

__all__ = [
    "Bodies",
    "Body",
    "Engine",
    "EngineError",
    "NonsenseError",
    "Seat",
    "arrived",
    "carried",
    "deliver",
    "relayed",
]
