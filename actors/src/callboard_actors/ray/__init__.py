"""Engine on a Ray cluster: `RayEngine`, for `CallPolicy(runs_in=...)` and `child(..., runs_in=...)`."""

from importlib.util import find_spec

if find_spec("ray") is None:
    from callboard.extend import install_command

    raise ImportError(f"callboard_actors.ray needs ray: {install_command('callboard-actors', 'ray')}")

from callboard_actors.ray._engine import RayEngine as RayEngine

__all__ = ["RayEngine"]
