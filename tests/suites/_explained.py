"""Tests of other projects that fail with callboard in place, each with the promise that is the reason."""

EXPLAINED: dict[str, dict[str, str]] = {
    "langchain": {
        "tests.unit_tests.agents.middleware.implementations.test_human_in_the_loop"
        "::test_per_call_needs_a_tool_call_id": (
            "a call whose id is None has an empty one as soon as it is read, so this middleware asks about it"
        ),
    },
    "langgraph": {
        "tests.test_large_cases::test_message_graph[memory]": (
            "the drawing of a graph as JSON names the module of each node's class, which is callboard's"
        ),
    },
    "langgraph-prebuilt": {
        "tests.test_react_agent::test_react_agent_parallel_tool_calls[memory-v1]": (
            "a call that has finished does not run again when its neighbour is answered; LangGraph's v1 runs it twice"
        ),
    },
}
