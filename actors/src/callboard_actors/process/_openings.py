"""Crews of a pool in all event loops that have it open, and the modules that they preload."""

from callboard import ActorStartError
from callboard_actors._engine import _opened
from callboard_actors._engine._main_module import why_no_pool
from callboard_actors.process._crew import Crew
from callboard_actors.process._settings import Terms


class Openings(_opened.Openings[Crew]):
    """Crews of a pool, one per event loop."""

    def __init__(self, terms: Terms) -> None:
        # An ordered set. The crews share this very object: a module added later is loaded by the next zygote.
        self._wanted: dict[str, None] = {}
        super().__init__(lambda: Crew(terms, self._wanted), noun="pool of processes", task="callboard_actors.process")

    def want(self, module: str) -> None:
        """Let zygotes that start from now on preload a module, if possible."""
        self._wanted[module] = None

    async def enter(self) -> None:
        """Start the crew of this event loop, or share the running one; raise `ActorStartError` if it has no workers."""
        if (reason := why_no_pool()) is not None:
            raise ActorStartError("Processes", reason, never=True)
        await super().enter()

    def pids(self) -> list[int]:
        """Return the process ids of the workers in all event loops."""
        return sorted(pid for crew in self.all() for pid in crew.pids())
