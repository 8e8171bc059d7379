"""Task: send traces with arguments and results to an OTLP receiver, but no secrets to it or to the model."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import anyio

from callboard import ToolNode, create_react_agent
from callboard.guards import Redact
from callboard.telemetry import setup
from callboard.testing import ScriptedModel, calls

CARD = "4111 1111 1111 1111"
MAIL = "ann@example.com"
charged = []
received = []


async def find_customer(name: str) -> str:
    """Look up a customer."""
    return f"{name}, {MAIL}, card {CARD}"


async def charge(card: str) -> str:
    """Charge a card."""
    charged.append(card)
    return f"charged {card}"


class Receiver(BaseHTTPRequestHandler):
    """Receiver of OTLP over HTTP."""

    def do_POST(self):
        received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass


async def main():
    charged.clear()
    received.clear()

    def pay(messages):
        return calls(("charge", {"card": messages[-1].content.partition("card ")[2]}))

    model = ScriptedModel([calls(("find_customer", {"name": "Ann"})), pay, "Done."])
    node = ToolNode([find_customer, charge], timeout=10.0, middleware=[Redact(reveal={"charge": ["card"]})])
    agent = create_react_agent(model, node, name="till")

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with setup(endpoint=f"http://127.0.0.1:{server.server_port}", metrics=False, capture=True):
            state = await agent.ainvoke({"messages": [("user", "Charge Ann.")]}, {"configurable": {"thread_id": "1"}})
        server.shutdown()

    spans = b"".join(body for path, body in received if path == "/v1/traces")
    for name in (b"invoke_agent till", b"execute_tool charge", b"<card:", b"<email:"):
        assert name in spans, name
    read_by_the_model = str(state["messages"]).encode()
    for text in (spans, read_by_the_model):
        assert CARD.encode() not in text
        assert MAIL.encode() not in text
    assert charged == [CARD]


if __name__ == "__main__":
    anyio.run(main)
    anyio.run(main, backend="trio")
