"""Who has a pool of processes open, and which modules its crews are to preload."""

from callboard import ActorStartError
from callboard_actors import _openings
from callboard_actors.process._crew import Crew
from callboard_actors.process._main_module import why_no_pool
from callboard_actors.process._settings import Terms


class Openings(_openings.Openings[Crew]):
    """The crews of a pool, one for each event loop."""

    def __init__(self, terms: Terms) -> None:
        self._wanted: dict[str, None] = {}
        super().__init__(lambda: Crew(terms, self._wanted), noun="pool of processes", task="callboard_actors.process")

    def want(self, module: str) -> None:
        """Have crews that start from now on preload a module, if that is possible."""
        self._wanted[module] = None

    async def enter(self) -> None:
        """Have a crew in this event loop, at full strength.

        Raises:
            ActorStartError: there is none.
        """
        if (reason := why_no_pool()) is not None:
            raise ActorStartError("Processes", reason, never=True)
        await super().enter()

    def pids(self) -> list[int]:
        """The process ids of all workers, in all event loops."""
        return sorted(pid for crew in self.all() for pid in crew.pids())
