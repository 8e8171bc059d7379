"""langchain-mcp-adapters, measured in its own environment: `python _mcp_adapters.py '{"calls": ..., ...}'`."""

import asyncio
import json
import statistics
import sys
from time import perf_counter
from typing import Any


async def main(calls: int, opened: int, server: list[str]) -> dict[str, float]:
    """Print the medians of a call with a kept session and with a new session for each call, which is the default."""
    from langchain_mcp_adapters.client import MultiServerMCPClient  # type: ignore[import-not-found]
    from langchain_mcp_adapters.tools import load_mcp_tools  # type: ignore[import-not-found]

    here = {"transport": "stdio", "command": server[0], "args": server[1:]}
    client = MultiServerMCPClient({"served": here})
    async with client.session("served") as session:
        kept = await _median(await load_mcp_tools(session), calls)
    return {
        "langchain-mcp-adapters, a kept session": kept,
        "langchain-mcp-adapters, as by default": await _median(await client.get_tools(), opened),
    }


async def _median(tools: list[Any], calls: int) -> float:
    [echo] = [tool for tool in tools if tool.name == "echo"]
    taken = []
    for _ in range(calls + 1):
        began = perf_counter()
        await echo.ainvoke({"text": "hello"})
        taken.append(perf_counter() - began)
    return statistics.median(taken[1:])


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(**json.loads(sys.argv[1])))))
