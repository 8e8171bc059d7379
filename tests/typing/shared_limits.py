"""Stores of shared limits fit where they are to go; the type checkers read this file, nothing runs it."""

from typing import assert_type

from callboard import CallPolicy, Limit, Rate, SharedLimits, fencing_token
from callboard_actors.postgres import PostgresLimits
from callboard_actors.redis import RedisLimits

stores: list[SharedLimits] = [
    RedisLimits("redis://localhost", away="refuse"),
    PostgresLimits("postgresql://localhost/app", name="host", lease=5.0),
]
policies = [
    CallPolicy(limit=Limit(concurrency=8, rate=Rate(50), shared=store, tenant=lambda call: call["id"]))
    for store in stores
]
assert_type(fencing_token(), int | None)
