"""Tests of other projects that fail with callboard in place, each with the promise that is the reason."""

_TO_THREAD = "the test calls asyncio.to_thread, which needs asyncio"
_V3 = 'LangChain implements astream_events(version="v3") with asyncio; on trio, callboard refuses it'
_NO_AGENT = "the test has no agent: it awaits a chat model or a middleware of LangChain, which needs asyncio"


def _all(reason: str, module: str, *tests: str) -> dict[str, str]:
    """Return one reason for several tests of a module or class, by the names of the tests."""
    return {f"tests.unit_tests.agents.{module}::{test}": reason for test in tests}


_ON_TRIO = {
    **_all(
        _TO_THREAD,
        "middleware.core.test_dynamic_tools",
        "test_conditional_dynamic_tool[False]",
        "test_dynamic_tool_basic[with_none_tools-False]",
        "test_dynamic_tool_basic[with_static_tools-False]",
        "test_dynamic_tool_basic[without_static_tools-False]",
        "test_dynamic_tool_chained_middleware[False]",
        "test_dynamic_tool_without_handler_raises_error[with_static_tools-False]",
        "test_dynamic_tool_without_handler_raises_error[without_static_tools-False]",
        "test_multiple_dynamic_tools_with_static[False]",
    ),
    **_all(
        _TO_THREAD,
        "middleware.implementations.test_auto_mode",
        "test_agent_executes_or_blocks_calls_by_probability[0.2-success-expected_executions0-False]",
        "test_agent_executes_or_blocks_calls_by_probability[0.5-error-expected_executions1-False]",
        "test_classifier_context_is_limited_to_last_30_messages",
        "test_classifier_failure_terminates_agent_run[False]",
        "test_classifier_receives_messages_tool_call_and_description",
        "test_unlisted_tool_bypasses_classification",
    ),
    **_all(_TO_THREAD, "middleware.implementations.test_model_refusal", "test_stream_surfaces_refusal[False]"),
    **_all(
        _TO_THREAD,
        "middleware.implementations.test_model_router",
        "test_agent_routes_using_latest_human_message[False]",
        "test_classifier_failure_terminates_agent_run[False]",
        "test_missing_human_message_is_rejected[False]",
    ),
    **_all(
        _V3,
        "middleware.core.test_internal_call_transformer",
        "test_caller_supplied_metadata_cannot_forge_internal_marker",
        "test_internal_model_calls_excluded_from_messages_projection",
        "test_internal_model_calls_excluded_from_raw_event_log",
        "test_internal_whole_message_excluded_from_messages_projection",
        "test_internal_whole_message_excluded_from_raw_event_log",
    ),
    **_all(
        _V3,
        "middleware.implementations.test_summarization.TestSummarizationStreamingEndToEnd",
        "test_summarization_call_excluded_from_messages_projection",
    ),
    **_all(
        _V3,
        "middleware.implementations.test_tool_emulator.TestLLMToolEmulatorStreamingEndToEnd",
        "test_emulated_tool_call_excluded_from_messages_projection",
    ),
    **_all(_V3, "test_subagent_transformer", "test_subagents_surfaces_named_subagent_async"),
    **_all(
        _NO_AGENT,
        "middleware.implementations.test_model_fallback",
        "test_all_models_fail_async",
        "test_fallback_on_primary_failure_async",
        "test_multiple_fallbacks_async",
        "test_primary_model_succeeds_async",
    ),
    **_all(_NO_AGENT, "middleware.implementations.test_shell_tool", "test_async_methods_delegate_to_sync"),
    **_all(
        _NO_AGENT,
        "middleware.implementations.test_summarization",
        "test_acreate_summary_raises_on_failure",
        "test_acreate_summary_recovers_from_context_overflow",
        "test_and_trigger_conditions_async",
        "test_chat_model_summarizer_async",
        "test_create_summary_marks_its_call_internal[async]",
        "test_create_summary_preserves_image_urls[async]",
        "test_summarization_middleware_abefore_model_raises_on_summary_failure",
        "test_summarization_middleware_async_error_handling",
        "test_summarization_middleware_full_workflow_async",
        "test_summarizer_async",
        "test_summarizer_non_str_return_raises_type_error_async",
        "test_sync_summarizer_on_async_path",
    ),
}

_OF_PEOPLE = "tests.unit_tests.agents.middleware.implementations.test_human_in_the_loop::"
_OF_CREATE_AGENT = {
    f"{_OF_PEOPLE}test_per_call_needs_a_tool_call_id": (
        "create_agent gives an id to a call without one, so that this middleware can ask about it"
    ),
    f"{_OF_PEOPLE}test_per_call_same_tool_twice_routes_each_answer_to_its_own_call": (
        "create_agent gives an id to a call with an empty one, which providers refuse; the test looks for the empty id"
    ),
}

EXPLAINED: dict[str, dict[str, str]] = {
    "deepagents-create-agent": {
        "tests.unit_tests.test_end_to_end.TestDeltaChannels::test_files_not_in_channel_values": (
            "a checkpoint of callboard contains the whole state, including the value of a DeltaChannel"
        ),
    },
    "langchain": {
        f"{_OF_PEOPLE}test_per_call_needs_a_tool_call_id": (
            "a call whose id is None has an empty one as soon as it is read, so this middleware asks about it"
        ),
    },
    "langchain-create-agent": _OF_CREATE_AGENT,
    "langchain-newest-create-agent": _OF_CREATE_AGENT,
    "langchain-newest-on-trio": _ON_TRIO,
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
