"""Engine on a Ray cluster: `RayEngine`, for `CallPolicy(runs_in=...)` and `child(..., runs_in=...)`."""

from callboard_actors._util._extras import check_installed

check_installed("callboard_actors.ray", "ray", extra="ray")

from callboard_actors.ray._engine import RayEngine as RayEngine  # noqa: E402 - it imports ray

__all__ = ["RayEngine"]
