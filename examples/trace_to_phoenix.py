"""An agent's run in a trace viewer: concurrent calls, a retry, and a timeout.

python examples/trace_to_phoenix.py                                     a line for each span
python examples/trace_to_phoenix.py --endpoint http://localhost:6006    to Phoenix, or any other receiver of OTLP
"""

import argparse
from contextlib import AbstractContextManager

import anyio
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from callboard import CallPolicy, ToolNode, create_react_agent, tool_call
from callboard.middleware import Retry
from callboard.telemetry import Tracing, setup
from callboard.testing import ScriptedModel, calls

searches = 0


async def search(query: str) -> str:
    """Search the web, on a line that breaks once."""
    global searches
    searches += 1
    await anyio.sleep(0.05)
    if searches == 1:
        raise ConnectionError("no connection")
    return f"3 pages about {query}"


async def read_page(url: str) -> str:
    """Read a page, from a server that never answers."""
    await anyio.sleep_forever()


def count_words(text: str) -> int:
    """Count words, in a worker thread."""
    return len(text.split())


async def ask(thread_id: str) -> str:
    tools = ToolNode(
        [search, read_page, count_words],
        middleware=[Retry(2, initial=0.01, on=ConnectionError)],
        policies={"search": CallPolicy(idempotent=True), "read_page": CallPolicy(timeout=0.2)},
    )
    batch = calls(
        tool_call("search", query="tea"),
        tool_call("read_page", url="https://example.com/tea"),
        tool_call("count_words", text="tea is a drink"),
    )
    agent = create_react_agent(ScriptedModel([batch, "Tea is a drink."]), tools, name="researcher")
    turn_input = {"messages": [("user", "What is tea?")]}
    answer = await agent.ainvoke(turn_input, {"configurable": {"thread_id": thread_id}})
    return str(answer["messages"][-1].content)


def tracing(endpoint: str | None) -> AbstractContextManager[object]:
    """Set up tracing to an OTLP receiver or the terminal, with arguments and results, which are off by default."""
    if endpoint is not None:
        return setup(endpoint=endpoint, metrics=False, capture=True)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=line)))
    return Tracing(provider, capture=True).on()


def line(span: ReadableSpan) -> str:
    milliseconds = ((span.end_time or 0) - (span.start_time or 0)) / 1e6
    outcome = (span.attributes or {}).get("callboard.outcome", "")
    return f"{span.name:24} {milliseconds:6.0f} ms  {outcome}".rstrip() + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint")
    parser.add_argument("--backend", default="asyncio", choices=["asyncio", "trio"])
    parser.add_argument("--thread", default="tea")
    options = parser.parse_args()

    with tracing(options.endpoint):
        answer = anyio.run(ask, options.thread, backend=options.backend)

    assert answer == "Tea is a drink."
    assert searches == 2
    print(answer)
