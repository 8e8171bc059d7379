"""Extension point for fleets: the protocols and records that a fleet implements or uses.

A fleet (`callboard.Fleet`) admits a `FleetHost`, and returns its `Membership`.
"""

from callboard._calls._carried import arrived as arrived
from callboard._calls._carried import carried as carried
from callboard._calls._carried import deliver as deliver
from callboard._canonical import digest as digest
from callboard._fleets import Fleet as Fleet
from callboard._fleets import FleetAsk as FleetAsk
from callboard._fleets import FleetHost as FleetHost
from callboard._fleets import FleetSnapshots as FleetSnapshots
from callboard._fleets import KeyMovedError as KeyMovedError
from callboard._fleets import Membership as Membership
from callboard._fleets import Ownership as Ownership
from callboard._fleets import Posting as Posting

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
