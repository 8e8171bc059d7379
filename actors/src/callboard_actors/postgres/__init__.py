"""Limits and fleets of actors, shared by many processes through PostgreSQL.

limits = PostgresLimits("postgresql://localhost/app")
node = ToolNode(
    [fetch],
    policies={"fetch": CallPolicy(limit=Limit(concurrency=8, shared=limits))},
)

fleet = PostgresFleet("postgresql://localhost/app", secret=...)
node = ToolNode([child(Browser, key=by_user, fleet=fleet)])
"""

from callboard_actors.postgres._stores import PostgresFleet as PostgresFleet
from callboard_actors.postgres._stores import PostgresLimits as PostgresLimits

__all__ = ["PostgresFleet", "PostgresLimits"]
