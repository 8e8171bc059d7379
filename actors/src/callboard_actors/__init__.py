"""Ready-made actors and engines for callboard, one package each, such as `callboard_actors.process`."""

__all__: list[str] = []
