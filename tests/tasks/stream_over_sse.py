"""Task: a web service that streams the tokens, progress and results of an agent as server-sent events."""

import json
from contextlib import aclosing, asynccontextmanager

import anyio
import httpx2
from langchain_core.messages import AIMessageChunk, ToolMessage
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from callboard import DrainingError, ThreadBusyError, create_react_agent, drain_on_signal, progress
from callboard.testing import ScriptedModel, calls


async def search(query: str) -> str:
    """Search the catalogue."""
    progress("3 of 10 shelves")
    return f"one book about {query}"


def application():
    agent = create_react_agent(
        ScriptedModel([calls(("search", {"query": "tea"})), "There is one."]), [search], checkpointer="memory"
    )

    @asynccontextmanager
    async def lifespan(app):
        async with agent, drain_on_signal(agent, timeout=20):
            yield

    def event(kind, data):
        return f"event: {kind}\ndata: {json.dumps(data)}\n\n"

    async def events(text, thread):
        config = {"configurable": {"thread_id": thread}}
        agent_input = {"messages": [("user", text)]}
        try:
            async with aclosing(agent.astream(agent_input, config, stream_mode=["messages", "custom"])) as stream:
                async for mode, chunk in stream:
                    if mode == "custom":
                        yield event("progress", chunk["message"])
                    elif isinstance(chunk[0], ToolMessage):
                        yield event("result", chunk[0].content)
                    elif isinstance(chunk[0], AIMessageChunk) and chunk[0].content:
                        yield event("token", chunk[0].content)
        except (DrainingError, ThreadBusyError) as error:
            yield event("error", str(error))
        else:
            yield event("end", None)

    async def message(request):
        text = (await request.json())["text"]
        return StreamingResponse(events(text, request.path_params["thread"]), media_type="text/event-stream")

    return Starlette(routes=[Route("/threads/{thread}", message, methods=["POST"])], lifespan=lifespan)


async def main():
    app = application()
    transport = httpx2.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://test") as client,
        client.stream("POST", "/threads/1", json={"text": "A book about tea?"}) as response,
    ):
        lines = [line async for line in response.aiter_lines() if line]

    kinds = [line.removeprefix("event: ") for line in lines[::2]]
    data = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert kinds[:2] == ["progress", "result"] and kinds[-1] == "end"
    assert data[:2] == ["3 of 10 shelves", "one book about tea"]
    assert "".join(part for kind, part in zip(kinds, data, strict=True) if kind == "token") == "There is one."


if __name__ == "__main__":
    anyio.run(main)
    anyio.run(main, backend="trio")
