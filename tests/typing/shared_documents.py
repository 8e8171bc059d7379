"""Stores of documents fit where they are to go; the type checkers read this file, nothing runs it."""

from callboard import SharedDocuments
from callboard.middleware import Cache, CircuitBreaker
from callboard_actors.postgres import PostgresDocuments
from callboard_actors.redis import RedisDocuments

stores: list[SharedDocuments] = [
    RedisDocuments("redis://localhost", away="refuse", largest=65_536),
    PostgresDocuments("postgresql://localhost/app", patience=0.5),
]
middleware = [
    (Cache({"fetch"}, shared=store, name="pages", version=2), CircuitBreaker(shared=store, name="hosts"))
    for store in stores
]
