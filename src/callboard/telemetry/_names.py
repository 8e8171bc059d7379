"""Names that other programs see: of spans, attributes, events, metrics, and environment variables.

`gen_ai.*` and `error.type` are names of the OpenTelemetry conventions for generative AI, version 0.1.0 (development
status), of open-telemetry/semantic-conventions-genai. OpenTelemetry's package of constants marks its copies as moved,
so they are literals in this module. Names that the conventions lack begin with `callboard.`;
`docs/reference/telemetry.md` explains each.
"""

SCOPE = "callboard"
"""Name of callboard's OpenTelemetry tracer and meter.

They have a version, and no schema URL: no schema of these conventions is published, and one of OpenTelemetry's other
conventions would have names translated that are not theirs.
"""

CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
CAPTURING = frozenset(("span_only", "span_and_event", "true"))
"""Values of the environment variable `CAPTURE_VARIABLE`, in lower case, that put arguments and results on spans."""

# Operations
EXECUTE_TOOL = "execute_tool"
INVOKE_AGENT = "invoke_agent"
CHAT = "chat"
ATTEMPT = "attempt"
ASK = "ask"

# The conventions
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT_NAME = "gen_ai.agent.name"
CONVERSATION = "gen_ai.conversation.id"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_DESCRIPTION = "gen_ai.tool.description"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
MODALITY = "gen_ai.token.modality"
ERROR_TYPE = "error.type"

# Events of a span that failed
EXCEPTION = "exception"
EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"

# Attributes that the conventions lack
OUTCOME = "callboard.outcome"
ATTEMPTS = "callboard.attempts"
ATTEMPT_NUMBER = "callboard.attempt"
BATCH = "callboard.batch"
QUEUE_WAIT = "callboard.queue_wait"
TIMEOUT = "callboard.timeout"
IDLE_TIMEOUT = "callboard.idle_timeout"
BUDGET = "callboard.budget"
RESUMED = "callboard.resumed"
INTERRUPTS = "callboard.interrupts"
QUESTIONS = "callboard.questions"
RUN_ID = "callboard.run.id"
NAMESPACE = "callboard.namespace"
HANDLED = "callboard.handled"
ACTOR = "callboard.actor"
ACTOR_KEY = "callboard.actor.key"
ACTOR_HANDLER = "callboard.actor.handler"
ACTOR_WAIT = "callboard.actor.wait"
MAILBOX_LENGTH = "callboard.actor.mailbox.length"

# Span events
GAVE_UP = "callboard.gave_up"
INTERRUPTED = "callboard.interrupted"
CANCELLED = "callboard.cancelled"
PROGRESS = "callboard.progress"
MESSAGE_READ = "callboard.message_read"
ACTOR_STARTED = "callboard.actor.started"
ACTOR_RESTARTED = "callboard.actor.restarted"
ACTOR_FAILED = "callboard.actor.failed"
ACTOR_DIED = "callboard.actor.died"
ACTOR_STOPPED = "callboard.actor.stopped"
ACTOR_EVICTED = "callboard.actor.evicted"

PREFIX = "callboard."
"""Prefix of span events and attributes for a middleware's notes, such as `callboard.retry` with `callboard.pause`."""
MESSAGE = "callboard.message"

# Metrics
TOOL_DURATION = "gen_ai.execute_tool.duration"
AGENT_DURATION = "gen_ai.invoke_agent.duration"
AGENT_TOOL_CALLS = "gen_ai.invoke_agent.tool_calls"
AGENT_INFERENCE_CALLS = "gen_ai.invoke_agent.inference_calls"
INFERENCE_DURATION = "gen_ai.client.inference.duration"
USED_INPUT_TOKENS = "gen_ai.client.inference.usage.input_tokens"
USED_OUTPUT_TOKENS = "gen_ai.client.inference.usage.output_tokens"
USED_CACHED_TOKENS = "gen_ai.client.inference.usage.cache_read.input_tokens"
REQUEST_INPUT_TOKENS = "gen_ai.client.inference.operation.input_tokens"
REQUEST_OUTPUT_TOKENS = "gen_ai.client.inference.operation.output_tokens"
QUEUE_WAIT_METRIC = "callboard.queue.wait"
QUEUE_LENGTH = "callboard.queue.length"
IN_FLIGHT = "callboard.calls.in_flight"
REJECTIONS = "callboard.calls.rejected"
TIMEOUTS = "callboard.calls.timed_out"
RETRIES = "callboard.calls.retried"
ABANDONED = "callboard.threads.abandoned"
ACTORS_ALIVE = "callboard.actors.alive"
MAILBOXES = "callboard.actors.mailbox.length"
MAILBOX_WAIT = "callboard.actors.mailbox.wait"
ASK_DURATION = "callboard.actors.ask.duration"
RESTARTS = "callboard.actors.restarts"
EVICTIONS = "callboard.actors.evictions"

# Buckets that the conventions advise
TOOL_BUCKETS = tuple(0.01 * 2**n for n in range(14))
AGENT_BUCKETS = tuple(0.1 * 2**n for n in range(13))
COUNT_BUCKETS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0, 256.0, 512.0)
TOKEN_BUCKETS = tuple(float(4**n) for n in range(14))
WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

PROVIDERS = {
    "amazon_bedrock": "aws.bedrock",
    "bedrock": "aws.bedrock",
    "bedrock_converse": "aws.bedrock",
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "google_genai": "gcp.gemini",
    "google_vertexai": "gcp.vertex_ai",
    "ibm": "ibm.watsonx.ai",
    "mistral": "mistral_ai",
    "mistralai": "mistral_ai",
    "xai": "x_ai",
}
"""Names of model providers in OpenTelemetry's conventions, by LangChain's name, if the names differ."""
