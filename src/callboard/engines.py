"""For those who write engines: what runs bodies elsewhere, and what crosses with them.

An engine (`callboard.Engine`) is given a `Body`. It asks for what is `carried` with it where the call waits, has it
there as `arrived`, and lets `deliver` do here what the body says meanwhile. Who passes a body on from one machine to
an engine of another has what came along `relayed`. An engine that can be drained runs bodies as its `Bodies` say.
"""

from callboard._calls._bodies import Bodies as Bodies
from callboard._calls._carried import NonsenseError as NonsenseError
from callboard._calls._carried import arrived as arrived
from callboard._calls._carried import carried as carried
from callboard._calls._carried import deliver as deliver
from callboard._calls._carried import relayed as relayed
from callboard._types import Body as Body
from callboard._types import Engine as Engine
from callboard._types import Seat as Seat
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
