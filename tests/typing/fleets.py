"""What type checkers say of one owner for each key; never run."""

from typing import assert_type

from callboard import Actor, ChildSpec, Fleet, Keyed, child, handler, keyed
from callboard_actors.postgres import PostgresFleet

fleets: list[Fleet] = [
    PostgresFleet("postgresql://localhost", secret="x", lease=5.0, patience=None),
    PostgresFleet("postgresql://localhost/app", secret=b"x", prefix="shop"),
]


class Book(Actor):
    """A book."""

    @handler
    async def pages(self) -> int:
        """Count its pages."""
        return 1


assert_type(child(Book(), fleet=fleets[0]), ChildSpec[Book])


async def check_actor_types() -> None:
    async with keyed(Book(), fleet=fleets[1]) as books:
        assert_type(books, Keyed[Book])
        assert_type(await books["ada"].pages(), int)


child(Book(), fleet="redis://localhost")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
