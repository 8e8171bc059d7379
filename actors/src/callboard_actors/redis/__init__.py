"""Limits, circuit breakers, cached results and fleets of actors, shared by many processes through Redis.

limits = RedisLimits("redis://localhost")
documents = RedisDocuments("redis://localhost")
node = ToolNode(
    [fetch],
    policies={"fetch": CallPolicy(limit=Limit(concurrency=8, shared=limits))},
    middleware=[Cache(["fetch"], shared=documents), CircuitBreaker(shared=documents)],
)

fleet = RedisFleet("redis://localhost", secret=...)
node = ToolNode([child(Browser, key=by_user, fleet=fleet)])
"""

from callboard_actors.redis._stores import RedisDocuments as RedisDocuments
from callboard_actors.redis._stores import RedisFleet as RedisFleet
from callboard_actors.redis._stores import RedisLimits as RedisLimits

__all__ = ["RedisDocuments", "RedisFleet", "RedisLimits"]
