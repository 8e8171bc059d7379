"""LangGraph's `@task` functions within calls and hooks of an agent."""

import asyncio
import gc
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import task
from langgraph.types import Command, RetryPolicy, interrupt

from callboard import create_agent, create_react_agent, tool_call
from callboard.testing import ScriptedModel, calls

from ._graphs import ids
from ._savers import AT, QUESTION, shape

pytestmark = pytest.mark.real_clock

ran: list[int] = []


@task
async def double(number: int) -> int:
    ran.append(number)
    return 2 * number


@task
def double_in_thread(number: int) -> int:
    ran.append(number)
    return 2 * number


@tool
async def awaits(number: int) -> str:
    """Double two numbers, and ask."""
    first, second = await double(number), await double_in_thread(number + 1)
    return f"{first}, {second}, {interrupt('sure?')}, {await double(number + 2)}"


@tool
def waits(number: int) -> str:
    """Double two numbers, and ask."""
    first, second = double(number), double_in_thread(number + 1)
    return f"{first.result()}, {second.result()}, {interrupt('sure?')}, {double(number + 2).result()}"


@pytest.mark.parametrize("create", [create_react_agent, create_agent])
@pytest.mark.parametrize("body", [awaits, waits], ids=["async", "sync"])
async def test_a_task_function_runs_once_though_its_call_runs_again_with_an_answer(
    saver: Any, create: Any, body: Any
) -> None:
    ran.clear()
    twice = [tool_call(body.name, "1", number=1), tool_call(body.name, "2", number=11)]
    agent = create(ScriptedModel([calls(*twice), "done"]), [body], checkpointer=saver)
    result = await agent.ainvoke(QUESTION, AT)
    assert sorted(ran) == [1, 2, 11, 12]
    answers = dict.fromkeys([question.id for question in result["__interrupt__"]], "yes")
    result = await agent.ainvoke(Command(resume=answers), AT)
    assert shape(result)[2:] == ["tool:2, 4, yes, 6", "tool:22, 24, yes, 26", "ai:done"]
    assert sorted(ran) == [1, 2, 3, 11, 12, 13]


async def test_a_hook_has_task_functions_as_well() -> None:
    async def before(state: Any) -> Any:
        return {"messages": [("user", f"{await double(1)} {interrupt('sure?')}")]}

    ran.clear()
    agent = create_react_agent(ScriptedModel(["done"]), [], pre_model_hook=before, checkpointer=InMemorySaver())
    assert list(ids(await agent.ainvoke(QUESTION, AT))) == ["sure?"]
    result = await agent.ainvoke(Command(resume="yes"), AT)
    assert shape(result) == ["human:go", "human:2 yes", "ai:done"]
    assert ran == [1]


@pytest.mark.backends("asyncio")
async def test_several_task_functions_run_at_once_and_their_errors_reach_the_call() -> None:
    barrier = asyncio.Barrier(2)

    @task
    async def meet(number: int) -> int:
        await barrier.wait()
        return number

    @task
    async def fails() -> None:
        raise ValueError("no")

    @tool
    async def body() -> str:
        """Run tasks."""
        results = await asyncio.gather(meet(1), meet(2))
        failing = fails()
        errors = await asyncio.gather(failing, failing, return_exceptions=True)
        return f"{results} {errors}"

    agent = create_react_agent(ScriptedModel([calls("body"), "done"]), [body])
    assert shape(await agent.ainvoke(QUESTION))[2] == "tool:[1, 2] [ValueError('no'), ValueError('no')]"


REFUSED: list[dict[str, Any]] = [{"retry_policy": RetryPolicy()}, {"timeout": timedelta(1)}]


@pytest.mark.parametrize("options", REFUSED, ids=min)
async def test_an_option_of_a_task_function_that_would_be_ignored_is_refused(options: dict[str, Any]) -> None:
    @tool
    async def body() -> int:
        """Run a task."""
        return int(await task(double.func, **options)(1))

    with pytest.raises(NotImplementedError, match=f"@task.{min(options)}=.*give the option to the tool"):
        await create_react_agent(ScriptedModel([calls("body")]), [body]).ainvoke(QUESTION)


async def test_a_task_function_that_nobody_waits_for_is_named() -> None:
    @tool
    async def body() -> str:
        """Forget a task."""
        with pytest.warns(RuntimeWarning, match="The @task 'double' has not run: await what it returns"):
            double(1)
            gc.collect()
        return "ok"

    assert (
        shape(await create_react_agent(ScriptedModel([calls("body"), "done"]), [body]).ainvoke(QUESTION))[-1]
        == "ai:done"
    )
