"""Extension points: protocols and data classes for engines, fleets of actors, shared limits, web access.

Middleware that waits, computes or shares state finds functions for that here, too.

- *Engines* run bodies in another process or on another machine. An `Engine` is given a `Body`. It calls
  `inject_context` where the call waits, enters `attached_context` where the body runs, and passes events of the body to
  `dispatch_event`. `EngineOperations` counts running bodies, so that the engine can be drained. A handler of an actor
  is not sent as a body: `actor_behind` recognises its function.
- *Fleets* give each key one owner among many processes. A `Fleet` admits a `FleetHost` and returns its `Membership`.
- *Shared limits* count permits for many processes: a `SharedLimits` store answers each `PermitRequest` with a `Permit`.
- *Web access* for hosts that a model has named: `is_public` checks the name, and `is_public_address` the peer after
  connecting, because a name may resolve differently each time. `retry_after` parses the header of that name. For URL
  arguments use `callboard.guards.Url`.
- `Openable` gives an object with `async with` also `open()` and `aclose()`, such as for the cells of a notebook.
- *Middleware*: a call waits in `waiting()` without using up its timeout, and for a `wakeup()` that any thread may set.
  `common_time` is a clock for state that several event loops share. `WorkerThreads` run code that blocks, and
  `shielded` work goes on while its call is cancelled. `run_on_asyncio` calls a library that needs asyncio;
  `is_sync_entry` tells that the run began in sync code, so that sync clients should be used.
"""

from callboard._calls._call import waiting as waiting
from callboard._calls._call_context import NonsenseError as NonsenseError
from callboard._calls._call_context import attached_context as attached_context
from callboard._calls._call_context import dispatch_event as dispatch_event
from callboard._calls._call_context import inject_context as inject_context
from callboard._calls._draining import EngineOperations as EngineOperations
from callboard._calls._thread_pool import WorkerThreads as WorkerThreads
from callboard._loops._bridge import run_on_asyncio as run_on_asyncio
from callboard._loops._current import common_time as common_time
from callboard._loops._current import wakeup as wakeup
from callboard._loops._entry_mode import is_sync_entry as is_sync_entry
from callboard._loops._owner_task import Openable as Openable
from callboard._loops._protocol import Wakeup as Wakeup
from callboard._loops._side_tasks import CutOffError as CutOffError
from callboard._loops._side_tasks import shielded as shielded
from callboard._records._fleets import Delivery as Delivery
from callboard._records._fleets import Fleet as Fleet
from callboard._records._fleets import FleetAsk as FleetAsk
from callboard._records._fleets import FleetHost as FleetHost
from callboard._records._fleets import KeyMovedError as KeyMovedError
from callboard._records._fleets import Membership as Membership
from callboard._records._fleets import Ownership as Ownership
from callboard._records._policies import Body as Body
from callboard._records._policies import Engine as Engine
from callboard._records._policies import Permit as Permit
from callboard._records._policies import PermitRequest as PermitRequest
from callboard._records._policies import Seat as Seat
from callboard._records._policies import SharedLimits as SharedLimits
from callboard._records._policies import ToolActor as ToolActor
from callboard._records._policies import actor_behind as actor_behind
from callboard._util._canonical import digest as digest
from callboard._web._addresses import Address as Address
from callboard._web._addresses import Resolver as Resolver
from callboard._web._addresses import is_public as is_public
from callboard._web._addresses import is_public_address as is_public_address
from callboard._web._addresses import literal as literal
from callboard._web._addresses import system_resolver as system_resolver
from callboard._web._retry_after import retry_after as retry_after
from callboard.exceptions import EngineError as EngineError

__all__ = [
    "Address",
    "Body",
    "CutOffError",
    "Delivery",
    "Engine",
    "EngineError",
    "EngineOperations",
    "Fleet",
    "FleetAsk",
    "FleetHost",
    "KeyMovedError",
    "Membership",
    "NonsenseError",
    "Openable",
    "Ownership",
    "Permit",
    "PermitRequest",
    "Resolver",
    "Seat",
    "SharedLimits",
    "ToolActor",
    "Wakeup",
    "WorkerThreads",
    "actor_behind",
    "attached_context",
    "common_time",
    "digest",
    "dispatch_event",
    "inject_context",
    "is_public",
    "is_public_address",
    "is_sync_entry",
    "literal",
    "retry_after",
    "run_on_asyncio",
    "shielded",
    "system_resolver",
    "waiting",
    "wakeup",
]
