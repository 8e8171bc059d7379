"""Helpers for clients of servers that a model has named: public addresses, host resolution, and `Retry-After`.

`callboard.middleware.Url` decides which URLs a tool may open. A client must also check the address that it connects to
with `is_public_address`, because a host name may resolve to another address at each lookup.
"""

from callboard._web._addresses import Address as Address
from callboard._web._addresses import is_public_address as is_public_address
from callboard._web._addresses import literal as literal
from callboard._web._resolver import Resolver as Resolver
from callboard._web._resolver import system_resolver as system_resolver
from callboard._web._retry_after import retry_after as retry_after

__all__ = ["Address", "Resolver", "is_public_address", "literal", "retry_after", "system_resolver"]
