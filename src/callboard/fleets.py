"""Extension point for fleets: the protocols and records that a fleet implements or uses.

A fleet (`callboard.Fleet`) admits a `FleetHost`, and returns its `Membership`.
"""

from callboard._calls._call_context import arrived as arrived
from callboard._calls._call_context import carried as carried
from callboard._calls._call_context import deliver as deliver
from callboard._records._fleets import Fleet as Fleet
from callboard._records._fleets import FleetAsk as FleetAsk
from callboard._records._fleets import FleetHost as FleetHost
from callboard._records._fleets import FleetSnapshots as FleetSnapshots
from callboard._records._fleets import KeyMovedError as KeyMovedError
from callboard._records._fleets import Membership as Membership
from callboard._records._fleets import Ownership as Ownership
from callboard._records._fleets import Posting as Posting
from callboard._util._canonical import digest as digest

__all__ = [
    "Fleet",
    "FleetAsk",
    "FleetHost",
    "FleetSnapshots",
    "KeyMovedError",
    "Membership",
    "Ownership",
    "Posting",
    "arrived",
    "carried",
    "deliver",
    "digest",
]
