"""Validated options of a Ray engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from callboard_actors._util._options import check_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """Validated options of an engine; `RayEngine` documents each of them."""

    workers: int
    concurrency: int
    cpus: float
    gpus: float
    memory: int | None
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    node: str | None = None
    runtime_env: Mapping[str, Any] | None = None
    grace: float
    max_result: int
    start_timeout: float
    patience: float

    def __post_init__(self) -> None:
        counts = ("workers", "max_result", "concurrency")
        check_counts("RayEngine", [(name, getattr(self, name), 1) for name in counts])
        for name in ("cpus", "gpus", "grace", "start_timeout", "patience"):
            value = getattr(self, name)
            if not value >= 0:
                raise ValueError(f"RayEngine({name}={value!r}) has to be a number of at least 0")

    def ray_options(self) -> dict[str, Any]:
        """Return the keyword arguments with which Ray starts a Ray actor."""
        options: dict[str, Any] = {
            "num_cpus": self.cpus,
            "num_gpus": self.gpus,
            "resources": dict(self.resources) or None,
            "memory": self.memory,
            "runtime_env": None if self.runtime_env is None else dict(self.runtime_env),
        }
        if self.node is not None:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(self.node, soft=False)
        return {name: value for name, value in options.items() if value is not None}
