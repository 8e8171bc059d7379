"""Extension point for stores of shared limits, and `Places` to apply a limit to work that is no tool call.

A store (`callboard.SharedLimits`) receives a request (`Wanted`) and returns a permit (`Stay`). `Places` applies a
`callboard.Limit` to other work, such as the requests of an HTTP client.
"""

from callboard._calls._places import Places as Places
from callboard._records._policies import SharedLimits as SharedLimits
from callboard._records._policies import Stay as Stay
from callboard._records._policies import Wanted as Wanted

__all__ = ["Places", "SharedLimits", "Stay", "Wanted"]
