"""For those who write stores of shared limits, and for those who hold to a limit in what is no tool call.

Such a store (`callboard.SharedLimits`) is asked for a place by `Wanted`, and answers with a `Stay`. Who limits
other work, such as the requests of a client, takes the `Places` of a `callboard.Limit`.
"""

from callboard._calls._places import Places as Places
from callboard._types import SharedLimits as SharedLimits
from callboard._types import Stay as Stay
from callboard._types import Wanted as Wanted

__all__ = ["Places", "SharedLimits", "Stay", "Wanted"]
