"""Limits, circuits and results that many processes share, kept in PostgreSQL.

limits = PostgresLimits("postgresql://localhost/app")
documents = PostgresDocuments("postgresql://localhost/app")
node = ToolNode(
    [fetch],
    policies={"fetch": CallPolicy(limit=Limit(concurrency=8, shared=limits))},
    middleware=[Cache(["fetch"], shared=documents), CircuitBreaker(shared=documents)],
)
"""

from callboard_actors.postgres._documents import PostgresDocuments as PostgresDocuments
from callboard_actors.postgres._limits import PostgresLimits as PostgresLimits

__all__ = ["PostgresDocuments", "PostgresLimits"]
