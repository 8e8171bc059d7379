"""A support agent that refunds a customer: the model reads tokens, only the bank reads the account."""

import anyio
from langchain_core.tools import tool

from callboard import CallEvent, ToolNode, observe, tool_call
from callboard.guards import Redact
from callboard.testing import calls

IBAN = "DE89 3704 0044 0532 0130 00"
EMAIL = "ann@example.com"
API_KEY = "sk-" + "live0123456789abcdefghij"

transfers: list[str] = []
searched: list[str] = []
decisions: list[str] = []


@tool(response_format="content_and_artifact")
async def find_customer(name: str) -> tuple[str, dict[str, str]]:
    """Look a customer up."""
    return f"{name}: {EMAIL}, account {IBAN}", {"name": name, "email": EMAIL}


@tool
async def search_web(query: str) -> str:
    """Search on somebody else's server."""
    searched.append(query)
    return "nothing found"


@tool
async def refund(account: str, reason: str) -> str:
    """Send money to an account."""
    transfers.append(account)
    return f"sent 20 EUR to {account} ({reason})"


@tool
async def check_status(order: str) -> str:
    """Ask the shop, which is down and talks too much."""
    raise ConnectionError(f"GET /orders/{order} failed with Authorization: Bearer {API_KEY}")


def note(event: CallEvent) -> None:
    if event.phase == "noted":
        decisions.append(f"{event.tool} {event.note} {event.facts}")


async def main() -> None:
    redact = Redact(reveal={"refund": ["account"]})
    node = ToolNode([find_customer, search_web, refund, check_status], middleware=[redact], handle_tool_errors=True)
    thread = {"configurable": {"thread_id": "ticket 17"}}

    async def turn(*requested):
        with observe(note):
            answers = (await node.ainvoke({"messages": [calls(*requested)]}, thread))["messages"]
        for answer in answers:
            print(f"{answer.name:14} {answer.content}")
        return answers

    (customer,) = await turn(tool_call("find_customer", name="Ann"))
    account = customer.content.rpartition("account ")[2]
    answers = await turn(
        tool_call("refund", account=account, reason=f"asked for by {EMAIL}"),
        tool_call("search_web", query=f"who is {EMAIL}?"),
        tool_call("check_status", order="A-1"),
    )
    for line in decisions:
        print(line)

    read_by_the_model = repr([customer, *answers])
    assert not any(secret in read_by_the_model for secret in (IBAN, EMAIL, API_KEY))
    assert transfers == [IBAN], "the bank has the account, to the letter"
    assert account in answers[0].content, "and what it says has the same token again"
    assert EMAIL not in searched[0]
    assert answers[2].content.startswith("Error: ConnectionError")

    # For the employee, who may read the values.
    restored = await redact.restore(answers[0].content, thread_id="ticket 17")
    print(f"at the desk    {restored}")
    assert IBAN in restored
    assert await redact.restore(account, thread_id="ticket 18") == account


if __name__ == "__main__":
    anyio.run(main)
