"""A thousand background calls of ten threads across kills: none is lost, none is doubled, unknown ones by policy."""

import random
import signal
from collections import Counter
from pathlib import Path

import anyio
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from ._crash_builder import CALLS, THREADS, builder_in, thread
from ._forks import Forks
from ._savers import complaint, saver_of

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive, pytest.mark.hangs_after(300)]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_thousand_background_calls_have_one_result_each_across_kills(
    forks: Forks, backend: str, tmp_path: Path
) -> None:
    chance, ends = random.Random(backend), list[int]()
    for seconds in (*(chance.uniform(0.2, 1.2) for _ in range(12)), 0.0):
        forks.begin("agent._crash_builder", str(tmp_path), "sqlite", backend, seconds)
        ends.append(forks.answer())
        forks.tell()
    assert ends.count(signal.SIGKILL) >= 5
    assert ends[-1] == 0

    anyio.run(check_threads, tmp_path)


async def check_threads(folder: Path) -> None:
    """Check that each call of the threads in a database has one result."""
    begun = Counter(line for line in (folder / "log").read_text().splitlines())
    unknown = 0
    async with saver_of("sqlite", folder / "db") as saver:
        agent = builder_in(folder / "log", saver)
        for number in range(THREADS):
            messages = (await agent.aget_state(thread(number))).values["messages"]
            assert complaint(messages) is None
            calls = {
                call["id"]: call
                for message in messages
                if isinstance(message, AIMessage)
                for call in message.tool_calls
            }
            assert len(calls) == CALLS
            ends_by_handle = Counter(message.id for message in messages if isinstance(message, HumanMessage))
            texts = {message.id: message.text for message in messages}
            for answer in messages:
                if not isinstance(answer, ToolMessage):
                    continue
                call_id, name = answer.tool_call_id, calls[answer.tool_call_id]["name"]
                handle = answer.additional_kwargs.get("callboard", {}).get("background")
                if handle is not None:
                    assert ends_by_handle[handle] == 1
                text = answer.text if handle is None else texts[handle]
                is_unknown = "unknown" in text
                unknown += is_unknown
                assert is_unknown or text.endswith(f"{'built' if name == 'build' else 'checked'} {call_id}")
                if name == "build":
                    assert begun[f"begun {call_id}"] <= 1
                else:
                    assert not is_unknown
    assert unknown
