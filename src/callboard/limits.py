"""For those who write stores of shared limits: what they are asked for, and what they answer.

Such a store (`callboard.SharedLimits`) is asked for a place by `Wanted`, and answers with a `Stay`.
"""

from callboard._types import SharedLimits as SharedLimits
from callboard._types import Stay as Stay
from callboard._types import Wanted as Wanted

__all__ = ["SharedLimits", "Stay", "Wanted"]
