"""Module with agents for the commands under test."""

from ._commands import Project

AGENT = """
    from pathlib import Path
    from callboard import ToolNode, create_react_agent
    from callboard.middleware import RequireApproval
    from callboard.testing import ScriptedModel, calls
    from langgraph.types import interrupt

    def note(line):
        with open(Path(__file__).parent / "log", "a") as log:
            log.write(line + "\\n")

    def weather(city: str) -> str:
        '''Tell the weather.'''
        note(f"weather {city}")
        return f"sun in {city}"

    def pay(amount: int) -> str:
        '''Pay.'''
        note(f"pay {amount}")
        return f"paid {amount}"

    def ask(question: str) -> str:
        '''Ask the user.'''
        return f"they said {interrupt(question)!r}"

    def broken() -> str:
        '''Fail.'''
        raise ValueError("the tool is broken")

    def agent_of(*script, middleware=(), **options):
        node = ToolNode([weather, pay, ask, broken], middleware=middleware)
        return create_react_agent(ScriptedModel(script, loop=True), node, **options)

    def heard(messages):
        spoken = [message.text for message in messages if message.type == "human"]
        return f"I have heard {len(spoken)}: {', '.join(spoken)}."

    approval = [RequireApproval(["pay"])]
    echo = agent_of(heard)
    sunny = agent_of(calls(("weather", {"city": "Oslo"}), content="Let me see."), "Sun, it says.")
    careful = agent_of(calls(("pay", {"amount": 3}), ("weather", {"city": "Oslo"})), "Paid.", middleware=approval)
    asking = agent_of(calls(("pay", {"amount": 3}), ("ask", {"question": "How?"})), "Well.", middleware=approval)
    failing = agent_of(calls("broken"), "Never said.")
    gated = agent_of(calls(("pay", {"amount": 3})), "Paid.", interrupt_before=["tools"])
"""


BUILDING = (
    AGENT
    + """
    import anyio, time
    from callboard import CallPolicy, tool_call

    HERE = Path(__file__).parent

    async def build(target: str = "all") -> str:
        '''Build until the test lets it end.'''
        note(f"build {target}")
        while not (HERE / target).exists():
            await anyio.sleep(0.02)
        return f"built {target}"

    @CallPolicy(background=True)
    async def pack() -> str:
        '''Pack in the background, until the test lets it end.'''
        await build("pack")
        return "packed"

    async def block() -> str:
        '''Keep the event loop for itself.'''
        note("blocks")
        time.sleep(600)

    def reply(messages):
        texts = [message.text for message in messages if message.type in ("human", "tool")]
        return f"I read {len(texts)}: {' | '.join(texts)}."

    def building(*replies, tools=(build, ask), **options):
        return create_react_agent(ScriptedModel([*replies, reply, reply, reply]), [*tools], **options)

    once = building(calls("build"))
    twice = building(calls(tool_call("build", "call_a", target="a"), tool_call("build", "call_b", target="b")))
    behind = building(calls("pack"), "It is being packed.", tools=[pack])
    def let_pack_end(messages):
        (HERE / "pack").touch()
        return "It is being packed."

    freed = building(calls("pack"), let_pack_end, tools=[pack])
    rudely = building(calls("block"), tools=[block])
    asking = building(calls("build", ("ask", {"question": "How?"})))
"""
)


def log(project: Project) -> list[str]:
    """Return what the tools have recorded."""
    path = project.directory / "log"
    return path.read_text().splitlines() if path.exists() else []


def let_end(project: Project, target: str = "all") -> None:
    """Let a build end."""
    (project.directory / target).touch()
