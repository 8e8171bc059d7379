"""Module whose import sets a context variable, as programs do that calculate with many digits."""

import decimal

decimal.getcontext().prec = 50


async def precision() -> int:
    """Return the number of digits with which this task calculates."""
    return decimal.getcontext().prec
