"""Program with real calls of every kind, and the exporter of Prometheus on loopback; it works until it is ended.

It prints its port. Calls run, fail, time out, wait, are rejected and retried, lose threads, and reach actors.
"""

import importlib.util
import re
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
from langchain_core.messages import AIMessage
from opentelemetry import metrics

from callboard import (
    AbandonedThreadWarning,
    Actor,
    CallPolicy,
    IdleMiddlewareWarning,
    Limit,
    ToolNode,
    child,
    create_react_agent,
    handler,
    observe,
)
from callboard.middleware import CircuitBreaker, Retry
from callboard.testing import ScriptedModel, calls

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "prometheus-and-grafana.md"


def export_metrics() -> int:
    """Run the page's set-up of the exporter, with a free port on loopback; return the port."""
    blocks = re.findall(r"^```python no-run\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    [block] = [code for code in blocks if "start_http_server(9464)" in code]
    names: dict[str, Any] = {}
    exec(block.replace("start_http_server(9464)", 'server, _ = start_http_server(0, addr="127.0.0.1")'), names)
    return int(names["server"].server_port)


def circuits_module() -> ModuleType:
    """Return `circuits.py` of the example; its folder is on no path."""
    spec = importlib.util.spec_from_file_location("circuits", DEPLOY / "circuits.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def work(seconds: float) -> str:
    """Work, one call after the other."""
    await anyio.sleep(seconds)
    return "done"


async def slow() -> str:
    """Take longer than the timeout."""
    await anyio.sleep(60)
    return "never"


def stuck() -> str:
    """Go on in a thread after the timeout."""
    time.sleep(0.2)
    return "late"


async def broken() -> str:
    """Fail."""
    raise ConnectionError("down")


failures = 0


async def flaky() -> str:
    """Fail every other time."""
    global failures
    failures += 1
    if failures % 2:
        raise OSError("once more")
    return "done"


class Counter(Actor):
    """Actor with a key; there is room for one, and an actor has three calls."""

    @handler
    async def count(self, who: str) -> str:
        """Count."""
        await anyio.sleep(0.02)
        if who == "bad":
            raise RuntimeError("wrong")
        return who


class Counted(ScriptedModel):
    """Scripted model that tells the tokens of each reply, and the name of a model."""

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return {"ls_provider": "openai", "ls_model_name": "gpt-x", "ls_model_type": "chat"}


USAGE: Any = {"input_tokens": 30, "output_tokens": 4, "total_tokens": 34}
BATCH = calls(
    *[("work", {"seconds": 0.3})] * 4,
    ("slow", {}),
    ("stuck", {}),
    ("flaky", {}),
    ("broken", {}),
    *[("count", {"who": name}) for name in ("ada", "bob", "bad", "ada")],
).tool_calls


def agents() -> list[Any]:
    policies = {
        "work": CallPolicy(limit=Limit(concurrency=1, queue=2)),
        "slow": CallPolicy(timeout=0.1),
        "stuck": CallPolicy(timeout=0.05),
        "flaky": CallPolicy(idempotent=True),
    }
    tools = [work, slow, stuck, flaky, broken]
    counter = child(Counter, key=lambda call: call["args"]["who"], cap=1, max_calls=2)
    node = ToolNode(
        [*tools, counter],
        policies=policies,
        handle_tool_errors=(ValueError, RuntimeError, ConnectionError, OSError),
        middleware=[CircuitBreaker(minimum=2, open_for=600, on=ConnectionError), Retry(2, initial=0.01)],
    )
    script = [AIMessage("", tool_calls=BATCH, usage_metadata=USAGE), AIMessage("Done.", usage_metadata=USAGE)]
    good = create_react_agent(Counted(script, loop=True), node, name="good")
    failing = Counted([calls(("broken", {}))], loop=True)
    return [good, create_react_agent(failing, ToolNode([broken], handle_tool_errors=False), name="bad")]


async def main() -> None:
    for kind in (AbandonedThreadWarning, IdleMiddlewareWarning):
        warnings.simplefilter("ignore", kind)
    print(export_metrics(), flush=True)
    good, bad = agents()
    with observe(circuits_module().Circuits(metrics.get_meter("busy"))):
        async with good, bad:
            while True:
                await good.ainvoke({"messages": [("user", "go")]})
                try:
                    await bad.ainvoke({"messages": [("user", "go")]})
                except ConnectionError:
                    await anyio.sleep(0.05)


if __name__ == "__main__":
    anyio.run(main)
