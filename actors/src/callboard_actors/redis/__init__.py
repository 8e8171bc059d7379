"""Limits, circuits and results that many processes share, kept in Redis.

limits = RedisLimits("redis://localhost")
documents = RedisDocuments("redis://localhost")
node = ToolNode(
    [fetch],
    policies={"fetch": CallPolicy(limit=Limit(concurrency=8, shared=limits))},
    middleware=[Cache(["fetch"], shared=documents), CircuitBreaker(shared=documents)],
)
"""

from callboard_actors.redis._documents import RedisDocuments as RedisDocuments
from callboard_actors.redis._limits import RedisLimits as RedisLimits

__all__ = ["RedisDocuments", "RedisLimits"]
