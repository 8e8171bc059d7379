"""Supervision of model requests in LangChain's agent: timeouts, limits, a budget, and callboard's middleware.

LangChain asks its model on asyncio, or in a thread if the run was started by sync code. So does this module: on trio, a
request and its supervision run on the asyncio loop beside trio, and a cancelled request closes its connection there.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langchain_core.tracers._streaming import _StreamingCallbackHandler

from callboard._calls._attempt import Attempt
from callboard._calls._batch import Batch
from callboard._calls._call import SupervisedCall, create_batch_context
from callboard._calls._observers import Observers
from callboard._langgraph._vocabulary import call_context
from callboard._loops._bridge import run_from_sync
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._entry_mode import entered_from
from callboard._loops._idle import report_activity
from callboard._records._policies import CallPolicy, ToolCallLike
from callboard.agent._model import TokenHandler, run_function, with_handler
from callboard.conversations._targets import MODEL
from callboard.exceptions import CallError
from callboard.tools._supervision import Supervision, keep_message, run_judged

Request = ModelRequest[Any]
Response = ModelResponse[Any]
Body = Callable[[Attempt], Coroutine[Any, Any, Response]]


class ModelSupervision(AgentMiddleware[Any, Any, Any]):
    """Innermost middleware of an agent: applies a policy (timeouts, limit, budget) to each request to a model."""

    def __init__(self, policy: CallPolicy) -> None:
        super().__init__()
        for option in ("runs_in", "idempotent", "on_unknown", "background"):
            if (value := getattr(policy, option)) is not None:
                raise ValueError(f"create_agent(model_policy=...): {option} is for calls of tools, got {value!r}")
        self._supervision = Supervision(
            "create_agent",
            "the model",
            timeout=None,
            limit=None,
            policies={MODEL: policy},
            grace=DEFAULT_GRACE,
            label="create_agent(model_policy=...)",
        )

    async def awrap_model_call(self, request: Request, handler: Callable[[Request], Awaitable[Response]]) -> Response:
        """Send a supervised request to the model; LangChain calls this method in async runs."""

        async def body(_: Attempt) -> Response:
            return await handler(request)

        with entered_from("async"):
            return await self._supervise(request, body, takes_thread=False)

    def wrap_model_call(self, request: Request, handler: Callable[[Request], Response]) -> Response:
        """Send a supervised request to the model; LangChain calls this method in sync runs."""

        async def body(attempt: Attempt) -> Response:
            return await attempt.run_in_thread(partial(handler, request))

        with entered_from("sync"):
            return run_from_sync(partial(self._supervise, request, body, takes_thread=True))

    async def _supervise(self, request: Request, body: Body, *, takes_thread: bool) -> Response:
        call = _ModelCall(self._supervision, request, body, takes_thread=takes_thread)
        with _name_the_model():
            await Batch([call], on_error="cancel", live=self._supervision.batches).run()
        return cast("Response", call.result)


@contextmanager
def _name_the_model() -> Generator[None]:
    """Change the text of errors that the `with` block raises: the text names the model in place of a tool."""
    try:
        yield
    except CallError as error:
        name = "" if error.tool == MODEL else f" {error.tool!r}"
        error.args = (str(error).replace(f"Tool {error.tool!r}", f"The model{name}", 1),)
        raise


class _ModelCall(SupervisedCall[Response]):
    """Supervised request to a model. Limits treat the request as a call of a tool `model` without arguments."""

    __slots__ = ("_body", "_threads")

    def __init__(self, supervision: Supervision, request: Request, body: Body, *, takes_thread: bool) -> None:
        config = ensure_config()
        context = partial(call_context, config, request.state, getattr(request.runtime, "context", None))
        call: ToolCallLike = {"name": MODEL, "args": {}, "id": None}
        # Observers hear of requests from the run: for them, a call is a call of a tool.
        batch_context = create_batch_context()._replace(observers=Observers())
        super().__init__(batch_context, *supervision.terms(call, context=context))
        self._threads = supervision.threads if takes_thread else None
        self._body = body if self.policy.idle_timeout is None else partial(_reporting_tokens, body)

    async def run(self) -> Response:
        response = await run_judged(
            self, partial(self.attempt, self._threads, self._body), lambda _: None, keep_message
        )
        return cast("Response", response)


async def _reporting_tokens(body: Body, attempt: Attempt) -> Response:
    """Run the function that sends a request; each token of the reply restarts the idle timeout."""
    token = var_child_runnable_config.set(with_handler(ensure_config(), _Tokens()))
    try:
        return await body(attempt)
    finally:
        var_child_runnable_config.reset(token)


class _Tokens(TokenHandler, _StreamingCallbackHandler[Any]):
    """Callback handler that restarts the idle timeout at each token. Its second base makes LangChain stream replies."""

    def on_llm_new_token(self, *_: Any, **__: Any) -> None:
        report_activity()

    def on_stream_event(self, *_: Any, **__: Any) -> None:
        report_activity()

    def tap_output_aiter(self, run_id: Any, output: Any) -> Any:
        return output

    def tap_output_iter(self, run_id: Any, output: Any) -> Any:
        return output


class ModelMiddleware(AgentMiddleware[Any, Any, Any]):
    """LangChain middleware that applies a callboard middleware, such as `Retry`, to requests to the model."""

    def __init__(self, middleware: Any, name: str) -> None:
        super().__init__()
        self._middleware = middleware
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    async def awrap_model_call(self, request: Request, handler: Callable[[Request], Awaitable[Response]]) -> Response:
        """Send a request to the model through the callboard middleware; LangChain calls this method in async runs."""
        with _name_the_model():
            return cast("Response", await self._middleware.awrap_model_call(request, handler))

    def wrap_model_call(self, request: Request, handler: Callable[[Request], Response]) -> Response:
        """Send a request to the model through the callboard middleware; LangChain calls this method in sync runs."""

        async def call_next(request: Request) -> Response:
            return await run_function(partial(handler, request), "the model")

        with _name_the_model():
            return run_from_sync(partial(self._middleware.awrap_model_call, request, call_next))
