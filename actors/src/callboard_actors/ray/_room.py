"""Free resources of the cluster, compared with the needs of one Ray actor."""

from collections.abc import Mapping
from typing import Any

import ray

from callboard_actors.ray._options import RayOptions


def what_lacks(terms: RayOptions) -> str | None:
    """Return a text that names the resources that are not free for one Ray actor; `None` if all are. Blocks."""
    free: Mapping[str, Any] = ray.available_resources()  # type: ignore[no-untyped-call]
    total: Mapping[str, Any] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    needs = {"CPU": terms.cpus, "GPU": terms.gpus, "memory": terms.memory or 0, **terms.resources}
    lacking = [
        f"{name}: it needs {amount:g}, and {free.get(name, 0):g} of {total.get(name, 0):g} are free"
        for name, amount in needs.items()
        if amount > free.get(name, 0)
    ]
    return ", ".join(lacking) or None
