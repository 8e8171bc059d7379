"""Actor whose handlers read the config of the run, in a module that workers can load."""

from typing import Any

from langchain_core.runnables import RunnableConfig

from callboard import Actor, ToolRuntime, handler


class Desk(Actor):
    """Actor that reports the config and the runtime of a run."""

    @handler
    async def look(self, place: str, config: RunnableConfig) -> list[Any]:
        """Say what the config says."""
        configurable, metadata = config["configurable"], config["metadata"]
        private = sorted(name for name in configurable if name.startswith("__"))
        return [place, configurable.get("thread_id"), configurable.get("user"), metadata.get("team"), private]

    @handler
    async def look_around(self, place: str, runtime: ToolRuntime) -> list[Any]:
        """Say what the runtime says."""
        return [place, runtime.tool_call_id, runtime.config["configurable"].get("thread_id")]
