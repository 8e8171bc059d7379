"""Caches of LangGraph fit where results are stored; the type checkers read this file, nothing runs it."""

from typing import Any

from langgraph.cache.base import BaseCache
from langgraph.cache.memory import InMemoryCache
from langgraph.cache.sqlite import SqliteCache

from callboard.middleware import Cache

stores: list[BaseCache[Any]] = [InMemoryCache[str](), SqliteCache[str](path=":memory:")]
for store in stores:
    Cache({"fetch"}, ttl=60.0, store=store, version=2)
