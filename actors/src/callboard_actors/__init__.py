"""Ready-made actors for callboard; none has arrived yet."""

__all__: list[str] = []
