"""The tests of other people that fail with callboard in place, and the promise of ours that is the reason."""

EXPLAINED: dict[str, dict[str, str]] = {
    "langgraph-prebuilt": {
        "tests.test_react_agent::test_react_agent_parallel_tool_calls[memory-v1]": (
            "a call that has finished does not run again when its neighbour is answered; LangGraph's v1 runs it twice"
        ),
    },
}
