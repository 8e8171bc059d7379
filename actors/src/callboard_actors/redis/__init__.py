"""Limits and fleets of actors, shared by many processes through Redis.

limits = RedisLimits("redis://localhost")
node = ToolNode(
    [fetch],
    policies={"fetch": CallPolicy(limit=Limit(concurrency=8, shared=limits))},
)

fleet = RedisFleet("redis://localhost", secret=...)
node = ToolNode([child(Browser, key=by_user, fleet=fleet)])
"""

from callboard_actors.redis._stores import RedisFleet as RedisFleet
from callboard_actors.redis._stores import RedisLimits as RedisLimits

__all__ = ["RedisFleet", "RedisLimits"]
