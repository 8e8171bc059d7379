"""Methods of references as tools: the policy and the idempotent mark decide what follows when the actor dies."""

from typing import Any

import anyio
import pytest
from langchain_core.tools import StructuredTool

from callboard import (
    Actor,
    CallPolicy,
    CallsInterrupted,
    Supervisor,
    ToolNode,
    child,
    handler,
    running,
)
from callboard.testing import tool_call
from tests.helpers import BrokenError

WAIT = 60
ran: list[str] = []


class Till(Actor):
    """Actor that dies the first time it is used."""

    fatal = (BrokenError,)

    @handler
    async def charge(self, amount: int) -> str:
        """Charge."""
        return self._run("charge")

    @handler(idempotent=True)
    async def look(self, amount: int) -> str:
        """Look."""
        return self._run("look")

    def _run(self, name: str) -> str:
        ran.append(name)
        if len(ran) == 1:
            raise BrokenError
        return f"{name} done"


async def _message(node: ToolNode, name: str) -> Any:
    [message] = (await node.ainvoke([tool_call(name, "1", amount=5)]))["messages"]
    return message


async def _asked(name: str, policy: CallPolicy | None = None, **options: Any) -> Any:
    ran.clear()
    with anyio.fail_after(WAIT):
        async with running(child(Till, intensity=100)) as till:
            node = ToolNode([getattr(till, name)], policies={name: policy} if policy else None, **options)
            return await _message(node, name)


async def test_by_default_the_model_is_told_and_the_handler_does_not_run_again() -> None:
    message = await _asked("charge")
    assert ran == ["charge"]
    assert (message.status, message.additional_kwargs["callboard"]["ended"]) == ("error", "unknown")
    assert "Whether it had its effect is unknown." in message.text
    assert message.text.endswith("Find out before you call it again.")


@pytest.mark.parametrize(
    ("name", "policy", "options"),
    [
        ("look", None, {}),
        ("charge", CallPolicy(idempotent=True), {}),
        ("charge", CallPolicy(on_unknown="rerun"), {}),
        ("charge", None, {"on_unknown": "rerun"}),
    ],
    ids=["marked handler", "idempotent", "rerun", "node"],
)
async def test_what_is_safe_to_repeat_runs_again(name: str, policy: CallPolicy | None, options: Any) -> None:
    message = await _asked(name, policy, **options)
    assert message.content == f"{name} done"
    assert ran == [name] * 2


async def test_a_person_is_asked_where_the_policy_says_so() -> None:
    with pytest.raises(CallsInterrupted) as caught:
        await _asked("look", CallPolicy(on_unknown="ask", idempotent=False))
    assert caught.value.interrupts[0].value[0]["action_request"] == {"action": "look", "args": {"amount": 5}}
    assert ran == ["look"]


async def test_references_of_a_supervisor_and_tools_made_of_methods_follow_the_same_rules() -> None:
    async with Supervisor([child(Till)], intensity=100) as tree:
        for made, expected in (
            (tree[Till].look, ["look", "look"]),
            (StructuredTool.from_function(coroutine=tree[Till].look, name="look"), ["look", "look"]),
            (tree[Till].charge, ["charge"]),
        ):
            ran.clear()
            await _message(ToolNode([made]), expected[0])
            assert ran == expected

        async def pay(amount: int) -> str:
            """Pay."""
            return str(await tree[Till].charge(amount))

        ran.clear()
        node = ToolNode([pay], policies={"pay": CallPolicy(idempotent=True)})
        assert (await _message(node, "pay")).content == "charge done"
        assert ran == ["charge", "charge"]


@pytest.mark.parametrize(("name", "runs"), [("charge", 1), ("look", 2)])
async def test_handlers_of_the_nodes_own_actors_follow_them_too(name: str, runs: int) -> None:
    ran.clear()
    async with ToolNode([Till()]) as node:
        await _message(node, name)
        assert (node.tools_by_name["look"].metadata, node.tools_by_name["charge"].metadata) == (
            {"idempotent": True},
            None,
        )
    assert ran == [name] * runs
