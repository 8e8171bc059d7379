"""Shop database on a PostgreSQL server, and the role that queries it."""

from typing import Any

from tests.agent._postgres import Server

from ._shop import SHOP

PASSWORD = "s3cret/p@ss"


def new_role(server: Server) -> None:
    """Create the role, which may only log in."""
    server.sql(f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'")


class Shop:
    """Database with the shop, whose tables belong to the administrator."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.admin_url = server.new_database()
        name = self.admin_url.rpartition("/")[2]
        self.url = server.url(name, user="reader", password=PASSWORD)
        for statement in SHOP.split(";\n"):
            if statement.strip():
                self.sql(statement)
        self.sql("GRANT USAGE, CREATE ON SCHEMA public TO reader")
        self.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO reader")

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as the administrator; return its result."""
        return self._server.sql(statement, self.admin_url)

    def names(self) -> list[str]:
        """Return the names of the items."""
        return [name for (name,) in self.sql("SELECT name FROM item ORDER BY id")]

    def running(self) -> int:
        """Return how many statements of the role run at this moment."""
        found = self.sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'reader' AND state = 'active'")
        return int(found[0][0])

    def sleeping(self) -> int:
        """Return how many of the role's statements are sleeping."""
        found = self.sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'reader' AND wait_event = 'PgSleep'")
        return int(found[0][0])

    def connected(self) -> int:
        """Return how many connections the role has."""
        return int(self.sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'reader'")[0][0])

    def drop(self) -> None:
        self._server.drop(self.admin_url)
