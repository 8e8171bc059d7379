"""For those who ask servers for something that a model has named: which addresses are public, and when to ask again.

Which URL a tool may be sent to is said by `callboard.middleware.Url`. Who connects asks `is_public_address` of the
address at the other end, for a name may have another one each time that it is looked up.
"""

from callboard._web._addresses import Address as Address
from callboard._web._addresses import is_public_address as is_public_address
from callboard._web._addresses import literal as literal
from callboard._web._resolver import Resolver as Resolver
from callboard._web._resolver import system_resolver as system_resolver
from callboard._web._retry_after import retry_after as retry_after

__all__ = ["Address", "Resolver", "is_public_address", "literal", "retry_after", "system_resolver"]
