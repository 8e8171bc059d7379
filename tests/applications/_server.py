"""Shop database on a PostgreSQL server, and the role that reads it."""

from typing import Any

from tests.agent._postgres import Server

from ._shop import SHOP

PASSWORD = "s3cret/p@ss"
CONNECTIONS = 4


def new_role(server: Server) -> None:
    """Create the role as the page does."""
    server.sql(f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}' NOSUPERUSER NOINHERIT CONNECTION LIMIT {CONNECTIONS}")


def new_template(server: Server) -> None:
    """Create the shop, whose tables belong to the administrator, as a template of databases."""
    server.sql("CREATE DATABASE shop")
    grants = "GRANT USAGE ON SCHEMA public TO reader; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader"
    server.sql(f"{SHOP}{grants}", server.url("shop"))


class Shop:
    """Database with the shop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.admin_url = server.new_database(template="shop")
        self.url = server.url(self.admin_url.rpartition("/")[2], user="reader", password=PASSWORD)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as the administrator; return its result."""
        return self._server.sql(statement, self.admin_url)

    def names(self) -> list[str]:
        return [name for (name,) in self.sql("SELECT name FROM item ORDER BY id")]

    def running(self) -> int:
        """Return how many statements of the role run at this moment."""
        [(count,)] = self.sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'reader' AND state = 'active'")
        return int(count)

    def drop(self) -> None:
        self._server.drop(self.admin_url)
