"""Engine on a Ray cluster: `RayEngine`, for `CallPolicy(runs_in=...)` and `child(..., runs_in=...)`."""

from importlib.util import find_spec

if find_spec("ray") is None:
    raise ImportError("callboard_actors.ray needs ray: pip install 'callboard-actors[ray]'")

from callboard_actors.ray._engine import RayEngine as RayEngine

__all__ = ["RayEngine"]
