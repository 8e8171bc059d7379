"""Limits that many processes share through Redis.

limits = RedisLimits("redis://localhost")
node = ToolNode([fetch], policies={"fetch": CallPolicy(limit=Limit(concurrency=8, shared=limits))})
"""

from callboard_actors.redis._stores import RedisLimits as RedisLimits

__all__ = ["RedisLimits"]
