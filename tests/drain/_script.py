"""Program without a server that is told to end during a call: `_script BACKEND TOOL SECONDS`."""

import sys

import anyio

from callboard import CallPolicy, DrainingError, ToolNode, drain_on_signal
from callboard.testing import calls

backend, tool, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])


async def pay(seconds: float) -> str:
    """Do what nobody can take back."""
    print("begun", flush=True)
    await anyio.sleep(seconds)
    return "paid"


async def look(seconds: float) -> str:
    """Do what may be done again."""
    return await pay(seconds)


async def main() -> int:
    node = ToolNode([pay, look], policies={"look": CallPolicy(idempotent=True)})

    async def run() -> None:
        try:
            [message] = await node.ainvoke([calls((tool, {"seconds": seconds}))])
            print(message.content, flush=True)
        except DrainingError as error:
            print(f"ended, begun={error.begun}", flush=True)

    async with anyio.create_task_group() as group:
        async with drain_on_signal(node, timeout=1.5) as shutdown:
            group.start_soon(run)
            await anyio.sleep_forever()
    return shutdown.exit_code


sys.exit(anyio.run(main, backend=backend))
