"""Program whose tool has its effect and is then interrupted by Ctrl-C.

`python -m tests.agent._interrupted_agent FOLDER BACKEND FACTORY PRESSES` runs the agent; a second start continues it.
"""

import signal
import sys
from pathlib import Path

import anyio

import callboard
from callboard.testing import ScriptedModel, calls


def main(folder: Path, backend: str, factory: str, presses: int) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` lets programs ignore it
    charged = folder / "charged"
    is_first = not charged.exists()

    async def charge(order: str) -> str:
        """Charge the order."""
        with charged.open("a") as file:
            file.write(f"{order}\n")
        for press in range(presses if is_first else 0):
            signal.raise_signal(signal.SIGINT)
            try:
                await anyio.sleep(0.01)
            except anyio.get_cancelled_exc_class():
                if press == presses - 1:
                    raise
        return "charged"

    def reply(messages):
        return calls(("charge", {"order": "8"})) if messages[-1].type == "human" else "Done."

    model, url = ScriptedModel([reply], loop=True), f"sqlite:///{folder / 'agent.db'}"
    agent = getattr(callboard, factory)(model, [charge], checkpointer=url)

    async def run() -> None:
        agent_input = {"messages": [("user", "Charge order 8.")]} if is_first else None
        state = await agent.ainvoke(agent_input, {"configurable": {"thread_id": "1"}})
        print(state["messages"][2].text)

    anyio.run(run, backend=backend)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4]))
    except KeyboardInterrupt:
        print("interrupted")
