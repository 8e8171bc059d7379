"""The terms on which workers live; pool, zygote and workers have the same."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the user of a pool has said; `Processes` tells what each of them means."""

    workers: int
    preload: tuple[str, ...]
    grace: float
    max_calls: int | None
    memory: int | None
    cpu: int | None
    max_result: int
    max_output: int
    start_timeout: float

    def __post_init__(self) -> None:
        for name in ("workers", "max_calls", "memory", "cpu", "max_result", "max_output"):
            value = getattr(self, name)
            if value is None and name in ("max_calls", "memory", "cpu"):
                continue
            if not isinstance(value, int):
                raise TypeError(f"{name}={value!r} is no integer")
            if value < 1:
                raise ValueError(f"{name}={value!r} is less than 1")
        for name in ("grace", "start_timeout"):
            seconds = getattr(self, name)
            if not 0 <= seconds < math.inf:
                raise ValueError(f"{name}={seconds!r} is no number of seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What zygote and workers are told once, before anything else."""

    parent: int
    """The process id of whoever has the pool."""
    backend: str
    """The event loop for async functions: "asyncio" or "trio"."""
    terms: Terms
