"""Extension points: protocols and records for engines, fleets, shared limits, shared documents and web access.

- *Engines* run bodies in another process or on another machine. An `Engine` is given a `Body`. It calls
  `inject_context` where the call waits, enters `attached_context` where the body runs, and passes events of the body to
  `dispatch_event`. `forwarded_context` serves an engine between the two. `EngineOperations` counts running bodies, so
  that the engine can be drained. A handler of an actor is not sent as a body: `actor_behind` recognises its function.
- *Fleets* give each key one owner among many processes. A `Fleet` admits a `FleetHost` and returns its `Membership`.
- *Shared limits* count permits for many processes: a `SharedLimits` store answers each `PermitRequest` with a `Permit`.
  A `LimitGuard` applies a `callboard.Limit` to work that is no tool call.
- *Shared documents* hold small state on a server. A `SharedDocuments` store applies a `Rule` to a `Document`: the rule
  sees `Found` and returns `Written`; the caller receives `Done` or `Away`.
- *Web access* for hosts that a model has named: `is_public_address` checks the peer after connecting, because a name
  may resolve differently each time. `retry_after` parses the header of that name. For URL arguments use
  `callboard.guards.Url`.
"""

from callboard._calls._call_context import NonsenseError as NonsenseError
from callboard._calls._call_context import attached_context as attached_context
from callboard._calls._call_context import dispatch_event as dispatch_event
from callboard._calls._call_context import forwarded_context as forwarded_context
from callboard._calls._call_context import inject_context as inject_context
from callboard._calls._draining import EngineOperations as EngineOperations
from callboard._calls._limits import LimitGuard as LimitGuard
from callboard._records._documents import EVERYBODY as EVERYBODY
from callboard._records._documents import Away as Away
from callboard._records._documents import Document as Document
from callboard._records._documents import Done as Done
from callboard._records._documents import Found as Found
from callboard._records._documents import Listener as Listener
from callboard._records._documents import Rule as Rule
from callboard._records._documents import SharedDocuments as SharedDocuments
from callboard._records._documents import Written as Written
from callboard._records._fleets import Delivery as Delivery
from callboard._records._fleets import Fleet as Fleet
from callboard._records._fleets import FleetAsk as FleetAsk
from callboard._records._fleets import FleetHost as FleetHost
from callboard._records._fleets import FleetSnapshots as FleetSnapshots
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
from callboard._web._addresses import is_public_address as is_public_address
from callboard._web._addresses import literal as literal
from callboard._web._addresses import system_resolver as system_resolver
from callboard._web._retry_after import retry_after as retry_after
from callboard.exceptions import EngineError as EngineError

__all__ = [
    "EVERYBODY",
    "Address",
    "Away",
    "Body",
    "Delivery",
    "Document",
    "Done",
    "Engine",
    "EngineError",
    "EngineOperations",
    "Fleet",
    "FleetAsk",
    "FleetHost",
    "FleetSnapshots",
    "Found",
    "KeyMovedError",
    "LimitGuard",
    "Listener",
    "Membership",
    "NonsenseError",
    "Ownership",
    "Permit",
    "PermitRequest",
    "Resolver",
    "Rule",
    "Seat",
    "SharedDocuments",
    "SharedLimits",
    "ToolActor",
    "Written",
    "actor_behind",
    "attached_context",
    "digest",
    "dispatch_event",
    "forwarded_context",
    "inject_context",
    "is_public_address",
    "literal",
    "retry_after",
    "system_resolver",
]
