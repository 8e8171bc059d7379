"""A service that speaks AG-UI, the protocol of front ends such as CopilotKit: the agent's stream becomes its events.

python ag_ui_service.py                            runs the example: calls, one of which fails, and a question
uvicorn --factory ag_ui_service:service            serves http://127.0.0.1:8000/agent, also hypercorn on trio
"""

import json
import logging
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any, cast

import anyio
import httpx2
from ag_ui import core as ag_ui
from ag_ui.encoder import EventEncoder
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.errors import UnknownInterruptError
from langgraph.types import Command, interrupt
from pydantic import BaseModel, FailFast, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from callboard import Agent, DrainingError, ThreadBusyError, create_agent, drain_on_signal
from callboard.testing import ScriptedModel, calls

MAX_BODY = 1_000_000
"""Bytes of a request's body: a client sends the whole conversation with each request."""


class RunInput(BaseModel):
    """Fields of AG-UI's `RunAgentInput` that the service uses: the history of the thread is not the client's."""

    # `RunAgentInput` makes an error for each wrong item of a list, which would hold the event loop for seconds.
    thread_id: str = Field(alias="threadId", pattern=r"^[\w.:-]{1,100}$")
    run_id: str = Field(alias="runId", max_length=100)
    messages: Annotated[list[dict[str, Any]], FailFast()]
    resume: Annotated[list[ag_ui.ResumeEntry], FailFast()] = []

    def to_agent(self) -> Any:
        """Return the input of the agent: the answers to its questions, or the last message."""
        if self.resume:
            if not all(re.fullmatch("[0-9a-f]{32}", answer.interrupt_id) for answer in self.resume):
                raise HTTPException(400, "resume: each answer needs the id of its question")
            return Command(resume={answer.interrupt_id: answer.payload for answer in self.resume})
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "user" or not isinstance(text := last.get("content"), str):
            raise HTTPException(400, "messages: the last one has to be a text of the user")
        return {"messages": [("user", text)]}


async def input_of(request: Request) -> RunInput:
    # Any web page may send other types than JSON without being asked: the browser of a user would send them.
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise HTTPException(415, "send application/json")
    try:
        return RunInput.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise HTTPException(400, f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}") from None


def events_of(mode: str, chunk: Any) -> Iterator[ag_ui.BaseEvent]:
    """Yield the events of a chunk of `astream`. The client makes the start and the end of a message from its chunks."""
    if mode == "messages":
        message = chunk[0]
        if isinstance(message, ToolMessage):
            yield ag_ui.ToolCallResultEvent(
                message_id=message.id or message.tool_call_id,
                tool_call_id=message.tool_call_id,
                content=sendable(message.text),
                metadata={"status": message.status},
            )
        elif isinstance(message, AIMessage) and message.text:
            yield ag_ui.TextMessageChunkEvent(message_id=message.id, role="assistant", delta=sendable(message.text))
        return
    for update in chunk.values():
        for message in update.get("messages", ()) if isinstance(update, dict) else ():
            for call in message.tool_calls if isinstance(message, AIMessage) else ():
                yield ag_ui.ToolCallChunkEvent(
                    tool_call_id=call["id"],
                    tool_call_name=sendable(call["name"]),
                    parent_message_id=message.id,
                    delta=json.dumps(call["args"]),
                )


def sendable(text: str) -> str:
    """Return a text without lone surrogates, which UTF-8 cannot have."""
    return text.encode(errors="replace").decode()


async def stream(agent: Agent, run: RunInput, agent_input: Any, config: Any) -> AsyncGenerator[str]:
    """Run the agent, and yield the server-sent events of the run."""
    encode = EventEncoder().encode
    yield encode(ag_ui.RunStartedEvent(thread_id=run.thread_id, run_id=run.run_id))
    questions: list[ag_ui.Interrupt] = []
    try:
        async with aclosing(agent.astream(agent_input, config, stream_mode=["messages", "updates"])) as chunks:
            async for mode, chunk in chunks:
                for event in events_of(mode, chunk):
                    yield encode(event)
                for question in chunk.get("__interrupt__", ()) if mode == "updates" else ():
                    text = sendable(str(question.value))
                    questions.append(ag_ui.Interrupt(id=question.id, reason="input_required", message=text))
    except (DrainingError, ThreadBusyError, UnknownInterruptError) as error:
        yield encode(ag_ui.RunErrorEvent(message=str(error)))
    except Exception:
        logging.getLogger("ag_ui_service").exception("a run failed")
        yield encode(ag_ui.RunErrorEvent(message="the run failed"))
    else:
        outcome = ag_ui.RunFinishedInterruptOutcome(interrupts=questions) if questions else None
        yield encode(ag_ui.RunFinishedEvent(thread_id=run.thread_id, run_id=run.run_id, outcome=outcome))


class EventStream(StreamingResponse):
    """Response that closes its events when the client leaves, which ends the run. Starlette's does not."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(cast("AsyncGenerator[str]", self.body_iterator)):
            await super().__call__(scope, receive, send)


def service(agent: Agent | None = None) -> Starlette:
    """Return the application; its agent sells books by default."""
    agent = agent or create_agent(bookseller(), [find_book, order], handle_tool_errors=True, checkpointer="memory")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with agent, drain_on_signal(agent, timeout=20):
            yield

    async def run(request: Request) -> StreamingResponse:
        run_input = await input_of(request)
        agent_input = run_input.to_agent()
        config: Any = {"configurable": {"thread_id": run_input.thread_id}}
        if not run_input.resume and (await agent.aget_state(config)).interrupts:
            raise HTTPException(409, "answer the open question in `resume`: a message would give it up")
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # proxies must not collect the events
        return EventStream(stream(agent, run_input, agent_input, config), 200, headers, "text/event-stream")

    # A page of another site may have a name that resolves to here.
    hosts_only = Middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1"])
    route = Route("/agent", run, methods=["POST"], max_body_size=MAX_BODY)
    return Starlette(routes=[route], lifespan=lifespan, middleware=[hosts_only])


# The agent of the example, and a client.


async def find_book(topic: str) -> str:
    """Find a book about a topic."""
    if topic == "dragons":
        raise LookupError("there is no shelf for dragons")
    return f"one book about {topic}"


def order(book: str) -> str:
    """Order a book, if the user agrees."""
    return f"ordered {book}" if interrupt(f"Order {book}?") == "yes" else f"did not order {book}"


def bookseller() -> ScriptedModel:
    """Return a model without a provider: it looks for each word of a message, or orders the word after "Order"."""

    def reply(messages: list[BaseMessage]) -> Any:
        if isinstance(messages[-1], ToolMessage):
            return f"I am done: {messages[-1].text}."
        verb, *topics = messages[-1].text.split() or ["?"]
        if verb == "Order":
            return calls(("order", {"book": " ".join(topics)}))
        return calls(*(("find_book", {"topic": word}) for word in [verb, *topics]))

    return ScriptedModel([reply], loop=True)


async def main() -> None:
    app = service()
    transport = httpx2.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        resume: list[dict[str, str]] = []
        for text in ("tea dragons", "Order Tea", ""):
            message = {"id": text, "role": "user", "content": text}
            body = {"threadId": "1", "runId": text, "messages": [message], "resume": resume}
            response = await client.post("/agent", json=body)
            for line in filter(None, response.text.splitlines()):
                event = json.loads(line.removeprefix("data: "))
                print(event.pop("type"), event)
                for question in event.get("outcome", {}).get("interrupts", ()):
                    resume = [{"interruptId": question["id"], "status": "resolved", "payload": "yes"}]


if __name__ == "__main__":
    anyio.run(main)
