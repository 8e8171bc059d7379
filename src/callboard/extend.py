"""Extension points: protocols and data classes for engines, fleets of actors, shared limits, web access.

Middleware that waits, computes or shares state finds functions for that here, too.

- *Engines* run bodies in another process or on another machine. An `Engine` is given a `Body`. It calls
  `inject_context` where the call waits, enters `attach_context` where the body runs, and passes events of the body to
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
- `install_command` names the packages of an extra, for the error of a missing one.
"""

from callboard._calls._call import waiting
from callboard._calls._call_context import NonsenseError, attach_context, dispatch_event, inject_context
from callboard._calls._draining import EngineOperations
from callboard._calls._thread_pool import WorkerThreads
from callboard._loops._bridge import run_on_asyncio
from callboard._loops._current import common_time, wakeup
from callboard._loops._entry_mode import is_sync_entry
from callboard._loops._owner_task import Openable
from callboard._loops._protocol import Wakeup
from callboard._loops._side_tasks import CutOffError, shielded
from callboard._records._fleets import Delivery, Fleet, FleetAsk, FleetHost, KeyMovedError, Membership, Ownership
from callboard._records._policies import (
    Body,
    Engine,
    Permit,
    PermitRequest,
    Seat,
    SharedLimits,
    ToolActor,
    actor_behind,
)
from callboard._util._canonical import digest
from callboard._util._extras import install_command
from callboard._web._addresses import Address, Resolver, is_public, is_public_address, literal, system_resolver
from callboard._web._retry_after import retry_after
from callboard.exceptions import EngineError

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
    "attach_context",
    "common_time",
    "digest",
    "dispatch_event",
    "inject_context",
    "install_command",
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
