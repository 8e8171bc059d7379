"""LangGraph's server on loopback for tests, from the package `langgraph-cli[inmem]`."""

import json
from pathlib import Path

from ._local_server import LocalServer, program_of, without

SERVED = Path(__file__).with_name("_served.py")


def program() -> str | None:
    return program_of("CALLBOARD_LANGGRAPH", "langgraph")


class LangGraphServer(LocalServer):
    """Server of graphs of `_served`."""

    def __init__(self, program: str) -> None:
        super().__init__(program, "ok")

    def start(self, *names: str) -> None:
        """Start the server with some graphs of `_served`, and wait until it answers."""
        about = {"dependencies": ["."], "graphs": {name: f"{SERVED}:{name}" for name in names}}
        (self.directory / "langgraph.json").write_text(json.dumps(about))
        quiet = {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        env = without("LANGSMITH_", "LANGCHAIN_") | quiet
        self._run("dev", "--no-browser", "--no-reload", "--port", str(self._port), env=env)
