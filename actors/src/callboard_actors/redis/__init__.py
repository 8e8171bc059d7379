"""Limits that many processes share, kept in Redis.

limits = RedisLimits("redis://localhost")
node = ToolNode([fetch], policies={"fetch": CallPolicy(limit=Limit(concurrency=8, shared=limits))})
"""

from callboard_actors.redis._limits import RedisLimits as RedisLimits

__all__ = ["RedisLimits"]
