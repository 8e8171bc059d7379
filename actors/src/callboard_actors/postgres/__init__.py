"""Limits that many processes share, kept in PostgreSQL.

limits = PostgresLimits("postgresql://localhost/app")
node = ToolNode([fetch], policies={"fetch": CallPolicy(limit=Limit(concurrency=8, shared=limits))})
"""

from callboard_actors.postgres._limits import PostgresLimits as PostgresLimits

__all__ = ["PostgresLimits"]
