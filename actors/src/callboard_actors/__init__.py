"""Ready-made actors for callboard, and where they run: `callboard_actors.process`."""

__all__: list[str] = []
