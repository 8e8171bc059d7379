"""A tool with state: the effects of concurrent calls, of an error, and of a crash.

One task owns the account. Ten tasks pay into it at once, without a lock; one call fails, one is cancelled, one kills
the actor. A model that uses the actor as a tool reads that its state was lost, and continues with the new incarnation.
"""

import logging

import anyio

from callboard import Actor, ActorDiedError, ToolNode, create_react_agent, handler, running
from callboard.testing import ScriptedModel, calls


class Account(Actor):
    """Account at a bank with a connection that may break."""

    fatal = (ConnectionError,)

    def __init__(self, opening: int) -> None:
        self.opening = opening

    async def start(self) -> None:
        self.balance = self.opening

    @handler
    async def pay(self, amount: int) -> int:
        """Pay an amount into the account, and tell the balance."""
        before = self.balance
        await anyio.sleep(0.001)  # no other handler runs meanwhile
        self.balance = before + amount
        return self.balance

    @handler
    async def split(self, parts: int) -> int:
        """Tell how much one of some equal parts would be."""
        return self.balance // parts

    @handler
    async def audit(self) -> str:
        """Wait for the auditor."""
        await anyio.sleep(3600)
        return "all is well"

    @handler
    async def break_line(self) -> None:
        """Break the line to the bank."""
        raise ConnectionError("no carrier")


async def with_a_reference() -> list[str]:
    lines: list[str] = []
    async with running(Account(100)) as account:
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(account.pay, 1)
        lines.append(f"ten tasks paid: {await account.pay(0)}")

        try:
            await account.split(0)
        except ZeroDivisionError:
            lines.append(f"after an error: {await account.pay(0)}")

        with anyio.move_on_after(0.05):
            await account.audit()
        lines.append(f"after a cancelled call: {await account.pay(0)}")

        try:
            await account.break_line()
        except ActorDiedError:
            lines.append(f"after a death: {await account.pay(0)}")
    return lines


async def with_a_model() -> list[str]:
    script = [calls(("pay", {"amount": 5})), calls("break_line"), calls(("pay", {"amount": 1})), "The line broke."]
    node = ToolNode([Account(100)])
    agent = create_react_agent(ScriptedModel(script), node)
    async with agent:
        run = await agent.ainvoke({"messages": [("user", "Pay five, please.")]})
    return [message.text for message in run["messages"] if message.type == "tool"]


def main() -> None:
    logging.getLogger("callboard").setLevel(logging.ERROR)  # hides the warning about the death
    for backend in ("asyncio", "trio"):
        lines = anyio.run(with_a_reference, backend=backend)
        assert lines == [
            "ten tasks paid: 110",
            "after an error: 110",
            "after a cancelled call: 110",
            "after a death: 100",
        ]
        read = anyio.run(with_a_model, backend=backend)
        assert (read[0], read[2]) == ("105", "101")
        assert "Whether it had its effect is unknown. What Account held is lost." in read[1]
    print(*lines, *read, sep="\n")


if __name__ == "__main__":
    main()
