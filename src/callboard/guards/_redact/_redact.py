"""`Redact`: tokens replace secrets and personal data, and chosen tools get the original values."""

import hmac
import logging
import re
import secrets as randomness
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool
from langgraph.store.base import BaseStore, GetOp, Item, PutOp

from callboard._calls._call import note
from callboard._calls._thread_pool import WorkerThreads
from callboard._langchain._errors import is_control_flow
from callboard._langchain._large_values import run_if_long
from callboard._langchain._outputs import CallNext, Output
from callboard._langgraph._vocabulary import ToolCallRequest
from callboard._records._policies import CallPolicy, check_count, check_type
from callboard._util._extras import is_installed, require
from callboard._util._suggestions import did_you_mean, suggests_options
from callboard.guards._redact._credentials import CREDENTIALS
from callboard.guards._redact._detectors import KIND_PATTERN, Detector, Finding, find_secrets, make_literal_finder
from callboard.guards._redact._personal import LIBRARIES, PERSONAL, PERSONAL_ON_DEMAND
from callboard.guards._redact._values import ErrorRedaction, RedactedError, replace_texts
from callboard.guards._sanitize._text import strip_invisible
from callboard.middleware._output_budget import StoreAccess
from callboard.tools._middleware import Middleware, Order, bind_to_thread, running_call
from callboard.tools._middleware_hooks import check_argument_names, check_tool_names, tool_names

if TYPE_CHECKING:
    from cachetools import LRUCache

T = TypeVar("T")

# Redaction of one call: tokens for the secrets in values and errors, and the value of each token


DEFAULT_DETECTORS = tuple(detector.name for detector in (*CREDENTIALS, *PERSONAL))
"""Names of the built-in detectors that `Redact` uses by default."""
_BUILT_IN = {detector.name: detector for detector in (*CREDENTIALS, *PERSONAL, *PERSONAL_ON_DEMAND)}

TOKEN = re.compile(rf"<({KIND_PATTERN}):[0-9a-f]{{12}}>")
"""Pattern of a token: the kind of the secret, and 48 bits of an HMAC of its value."""

_THOUGHT_TYPES = ("thinking", "redacted_thinking", "reasoning")
"""Types of content blocks that providers sign."""
_LITERAL_KIND = "secret"
_MIN_LITERAL_CHARS = 4
"""Minimum characters of a secret that is given as a literal; a shorter one would be found in ordinary text."""
_MAX_PASSES = 8
"""Maximum passes of redaction over a text.

A new token may reveal another secret beside it, and hostile text could repeat that.
"""


class Redaction:
    """Replacement of secrets by tokens, with a record of the value of each token."""

    def __init__(
        self, detectors: Sequence[Detector], key: bytes, thread_id: str, known_values: Mapping[str, str] | None = None
    ) -> None:
        self.values: dict[str, str] = {}
        self.has_tokens = False
        """`True` if a text has had tokens: new ones, or those of an earlier redaction."""
        self._replaced_kinds = Counter[str]()
        texts_by_kind: dict[str, list[str]] = {}
        for token, text in (known_values or {}).items():
            match = TOKEN.fullmatch(token)
            if match is not None and len(text) >= _MIN_LITERAL_CHARS:
                texts_by_kind.setdefault(match[1], []).append(text)
        self._detectors = (
            *detectors,
            *(Detector(kind, make_literal_finder(texts)) for kind, texts in texts_by_kind.items()),
        )
        self._kinds_of_detectors = {detector.name for detector in self._detectors}
        self._key_detectors = [detector for detector in detectors if detector.keys is not None]
        # Hashed first, because HMAC pads short keys with NUL: `key` and `key + b"\0"` would give the same tokens.
        self._key = sha256(key).digest()
        self._thread_id = thread_id

    def redact(self, value: Any) -> Any:
        """Return a copy of a nested value with tokens in place of secrets, or the value itself if it has no secrets."""
        error_redaction = ErrorRedaction(self.redact_text, self._token_for_secret_name)
        return replace_texts(value, self.redact_text, self._token_for_secret_name, error_redaction.replace_if_secret)

    def redact_conversation(self, messages: Iterable[BaseMessage | None]) -> list[Any]:
        """Return copies of the messages of a model request with tokens in place of secrets."""
        hidden_messages: list[Any] = []
        for message in messages:
            hidden = self.redact(message)
            if hidden is not message and isinstance(message, AIMessage) and isinstance(message.content, list):
                # A provider refuses a conversation in which a thought of its own model has changed.
                blocks = zip(message.content, hidden.content, strict=True)
                content = [
                    old if isinstance(old, dict) and old.get("type") in _THOUGHT_TYPES else new for old, new in blocks
                ]
                hidden = hidden.model_copy(update={"content": content})
            hidden_messages.append(hidden)
        return hidden_messages

    def redact_error(self, error: Exception) -> Exception:
        """Return an error with tokens in place of secrets. Control-flow exceptions are changed in place."""
        error_redaction = ErrorRedaction(self.redact_text, self._token_for_secret_name)
        if is_control_flow(error):
            error_redaction.redact_control_flow(error)
            return error
        redacted_error = error_redaction.redact_error(error)
        assert isinstance(redacted_error, Exception)
        return redacted_error

    def redact_text(self, text: str) -> str:
        """Return a text with tokens in place of secrets, also of secrets that contain invisible characters."""
        for _ in range(_MAX_PASSES):
            previous, text = text, self._redact_text_once(text)
            if text == previous:
                break
        return text

    def report_to_observers(self) -> None:
        """Report the kinds and the number of the replaced secrets to observers."""
        if self._replaced_kinds:
            note("redacted", kinds=sorted(self._replaced_kinds), count=self._replaced_kinds.total())

    def _token_for_secret_name(self, name: str, text: str) -> str | None:
        match = TOKEN.fullmatch(text)
        if match is not None and match[1] in self._kinds_of_detectors:
            return None  # already a token
        for detector in self._key_detectors:
            if detector.is_key(name) and (detector.check is None or detector.check(text)):
                return self._make_token(detector.name, text)
        return None

    def _redact_text_once(self, text: str) -> str:
        # An attacker may split a secret with invisible characters, or glue one to other text. So both readings are
        # searched, with and without those characters.
        findings = self._find_secrets(text, self._detectors)
        visible = strip_invisible(text)
        if visible == text:
            return self._replace_findings(text, findings)
        secrets = _secret_texts(text, findings)
        visible_secrets = _secret_texts(visible, self._find_secrets(visible, self._detectors))
        if secrets == visible_secrets:
            return self._replace_findings(text, findings)
        # Secrets that only the invisible characters separated from other text: search them literally in the visible
        # text.
        literal_detectors = [
            Detector(kind, make_literal_finder([secret])) for kind, secret in sorted(secrets - visible_secrets)
        ]
        return self._replace_findings(visible, self._find_secrets(visible, (*self._detectors, *literal_detectors)))

    def _find_secrets(self, text: str, detectors: Sequence[Detector]) -> list[Finding]:
        token_spans = [match.span() for match in TOKEN.finditer(text) if match[1] in self._kinds_of_detectors]
        self.has_tokens |= bool(token_spans)
        try:
            return find_secrets(text, detectors, token_spans)
        except Exception as error:
            # Fail closed. The error is raised outside of the handler, because its own text may show the secret.
            error_name = type(error).__qualname__
        raise RedactedError(error_name, "a detector failed, so nothing of the call is handed on")

    def _replace_findings(self, text: str, findings: Iterable[Finding]) -> str:
        parts: list[str] = []
        position = 0
        for finding in findings:
            secret = text[finding.start : finding.end]
            parts += [text[position : finding.start], self._make_token(finding.kind, secret)]
            position = finding.end
        return "".join([*parts, text[position:]])

    def _make_token(self, kind: str, value: str) -> str:
        # NUL separates the parts, so that no other thread, kind and value give the same bytes.
        identity = f"{self._thread_id}\0{kind}\0{value}".encode("utf-8", "surrogatepass")
        token = f"<{kind}:{hmac.digest(self._key, identity, 'sha256').hex()[:12]}>"
        self.values[token] = value
        self.has_tokens = True
        self._replaced_kinds[kind] += 1
        return token


def _secret_texts(text: str, findings: Iterable[Finding]) -> set[tuple[str, str]]:
    return {(finding.kind, text[finding.start : finding.end]) for finding in findings}


def resolve_detectors(choices: Sequence[str | Detector], secrets: Sequence[str]) -> tuple[Detector, ...]:
    """Return the detectors in `choices` (names or objects), and a detector that finds the texts in `secrets`."""
    if isinstance(choices, str):
        raise TypeError(f"Redact(detectors=...) takes a list of names or Detectors, got the string {choices!r}")
    if isinstance(secrets, str):
        raise TypeError("Redact(secrets=...) takes a list of strings, got one string")
    for position, secret in enumerate(secrets):
        # Errors name the position, not the value: they may be logged.
        if not isinstance(secret, str):
            raise TypeError(f"Redact(secrets=...)[{position}] is not a string but a {type(secret).__name__}")
        if len(secret) < _MIN_LITERAL_CHARS:
            raise ValueError(
                f"Redact(secrets=...)[{position}] has {len(secret)} characters; leave out what is shorter than "
                f"{_MIN_LITERAL_CHARS}, because it would be found everywhere"
            )
    detectors: list[Detector] = []
    for choice in choices:
        if not isinstance(choice, (str, Detector)):
            raise TypeError(f"Redact(detectors=...) takes names or Detectors, got {choice!r}")
        if isinstance(choice, str) and choice not in _BUILT_IN:
            suggestion = did_you_mean(choice, _BUILT_IN)
            raise ValueError(f"Redact(detectors=...) knows no {choice!r}; there are {', '.join(_BUILT_IN)}{suggestion}")
        detectors.append(_BUILT_IN[choice] if isinstance(choice, str) else choice)
    if secrets:
        detectors.append(Detector(_LITERAL_KIND, make_literal_finder(secrets)))
    for name, count in Counter(detector.name for detector in detectors).items():
        if count > 1:
            raise ValueError(f"Redact(detectors=...) has {count} detectors named {name!r}; rename or join them")
    # No detector is left out silently: the user would believe that the data is protected.
    built_in = [detector.name for detector in detectors if detector is _BUILT_IN.get(detector.name)]
    missing = {name: library for name, library in LIBRARIES.items() if name in built_in and not is_installed(library)}
    kinds = ", ".join(map(repr, missing))
    remedy = f"leave out what it finds: Redact([name for name in DEFAULT_DETECTORS if name not in [{kinds}]])"
    require(f"Redact(detectors=...) with {kinds}", *missing.values(), extra="redact", instead=remedy)
    return tuple(detectors)


# Vaults

MAX_VALUE_CHARS = 65_536
"""Maximum characters of a value that a vault stores; a longer secret gets a token, but cannot be restored."""


class Vault(Protocol):
    """Storage for the values that tokens stand for, separate for each conversation.

    Several tasks may use it at once.
    """

    async def put(self, thread_id: str, values: Mapping[str, str]) -> None:
        """Store each value under its token. If a token is stored already, its stored value is the same."""
        ...

    async def get(self, thread_id: str, tokens: Collection[str]) -> Mapping[str, str]:
        """Return the values of the given tokens, by token; tokens that this conversation does not have are left out."""
        ...


class MemoryVault:
    """Vault that keeps the values of tokens in memory; if it is full, it evicts the least recently used entry.

    Args:
        threads: maximum number of conversations, at least 1.
        values: maximum number of values per conversation, at least 1.

    Raises:
        ValueError: if a number is out of range.
        ImportError: if neither the extra `redact` nor `middleware` is installed.
    """

    def __init__(self, *, threads: int = 1_000, values: int = 10_000) -> None:
        for name, number in (("threads", threads), ("values", values)):
            check_count(f"MemoryVault({name}=...)", number, least=1)
        require("MemoryVault(...)", "cachetools", extra="redact", instead="Redact(vault=StoreVault(store))")
        from cachetools import LRUCache

        self._make_thread_values: Callable[[], LRUCache[str, str]] = partial(LRUCache, values)
        self._values_by_thread: LRUCache[str, LRUCache[str, str]] = LRUCache(threads)
        # Even reading reorders an LRU cache, and calls of several threads use the vault.
        self._lock = threading.Lock()

    async def put(self, thread_id: str, values: Mapping[str, str]) -> None:
        """Store each value under its token."""
        with self._lock:
            self._thread_values(thread_id).update(values)

    async def get(self, thread_id: str, tokens: Collection[str]) -> Mapping[str, str]:
        """Return the stored values of the given tokens, by token."""
        with self._lock:
            values = self._thread_values(thread_id)
            return {token: values[token] for token in tokens if token in values}

    def _thread_values(self, thread_id: str) -> "LRUCache[str, str]":
        return self._values_by_thread.setdefault(thread_id, self._make_thread_values())


class StoreVault:
    """Vault that keeps the values of tokens in a LangGraph store, where they are available even after a restart.

    The store holds the values in plain text, without an index. Everybody who can read the store can read the values.

    Args:
        store: any LangGraph store; under trio it is used through an asyncio bridge. The namespace of a conversation is
            `("callboard", "vault", ...)` with a digest of its `thread_id`.
    """

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._access = StoreAccess()

    async def put(self, thread_id: str, values: Mapping[str, str]) -> None:
        """Store each value under its token."""
        namespace = self._namespace(thread_id)
        ops = [PutOp(namespace, token, {"value": value}, index=False) for token, value in values.items()]
        await self._access.batch(self._store, ops)

    async def get(self, thread_id: str, tokens: Collection[str]) -> Mapping[str, str]:
        """Return the stored values of the given tokens, by token."""
        namespace = self._namespace(thread_id)
        items = await self._access.batch(self._store, [GetOp(namespace, token) for token in tokens])
        return {item.key: str(item.value["value"]) for item in items if isinstance(item, Item)}

    def _namespace(self, thread_id: str) -> tuple[str, ...]:
        # A digest, because a thread id may contain characters that a namespace must not, such as a period.
        return ("callboard", "vault", sha256(thread_id.encode("utf-8", "surrogatepass")).hexdigest())


# Middleware

_MAX_REVEAL_PASSES = 8
"""Maximum number of passes that replace tokens by values: a value may itself contain tokens."""

_REVEALED_TO_PERSONS = "with reveal=..., the question shows, and a checkpoint keeps, what tokens stand for"
_log = logging.getLogger("callboard")


@suggests_options()
class Redact(Middleware):
    """Middleware that replaces secrets and personal data in arguments, results and errors by tokens.

    A token such as `<email:7f3a9c04b1d2>` has the kind and an HMAC-SHA256 (RFC 2104) of the value, cut to 48 bits. In
    one conversation (`thread_id`) the same value always has the same token; in other conversations it has another.
    Tools in `reveal` get values in place of tokens; all other tools get tokens in place of values. An error keeps its
    type if clearing its arguments, attributes and notes is enough; otherwise a `RedactedError` replaces it.

    With `models`, the model of `create_agent` gets tokens, too. The messages of the thread and the replies stay as they
    are: tools in `reveal` get values for the tokens in a reply, and `restore` makes an answer readable for the user.

    Args:
        detectors: names of built-in detectors, or `Detector` objects.
        reveal: names of tools that get values, or a mapping from such names to the arguments with values.
        secrets: values that are always secret; at least 4 characters each. They are found as they are, and in the usual
            escaped, percent-encoded, hexadecimal and base64 forms.
        models: whether to replace secrets in the messages and the system prompt of model requests.
        vault: storage of the values; by default a new `MemoryVault`.
        key: at least 16 bytes; with it tokens stay the same after a restart. By default random.

    Raises:
        ValueError: if a detector is unknown, two have the same name, or a secret or the key is too short.
        TypeError: if an argument has the wrong type.
        ImportError: if the extra `redact` is not installed, and `phone` or `iban` is used, or no vault is given.
    """

    order = Order("redact")

    def __init__(
        self,
        detectors: Sequence[str | Detector] = DEFAULT_DETECTORS,
        *,
        reveal: Sequence[str] | Mapping[str, Sequence[str]] = (),
        secrets: Sequence[str] = (),
        models: bool = False,
        vault: Vault | None = None,
        key: bytes | None = None,
    ) -> None:
        if key is not None and not isinstance(key, bytes):
            raise TypeError(f"Redact(key=...) takes bytes, such as secrets.token_bytes(); got {type(key).__name__}")
        if key is not None and len(key) < 16:
            raise ValueError(f"Redact(key=...) has {len(key)} bytes; give it 16 or more, such as secrets.token_bytes()")
        if vault is not None and not (hasattr(vault, "put") and hasattr(vault, "get")):
            raise TypeError(f"Redact(vault=...) takes a vault, such as MemoryVault(); got {vault!r}")
        check_type("Redact(models=...)", models, bool, "True")
        self._detectors = resolve_detectors(detectors, secrets)
        self._revealed_arguments: dict[str, frozenset[str] | None] = dict.fromkeys(
            tool_names("Redact(reveal=...)", reveal)
        )
        """Names of the arguments with values, by the name of the tool; `None` stands for all arguments."""
        if isinstance(reveal, Mapping):
            for tool, names in reveal.items():
                if isinstance(names, str) or not isinstance(names, Iterable):
                    example = "write reveal={'pay': ['card']}"
                    raise TypeError(
                        f"Redact(reveal=...) takes names of arguments for {tool!r}, got {names!r}; {example}"
                    )
                self._revealed_arguments[tool] = frozenset(names)
        self.order = Order("redact", not_around={"approval": _REVEALED_TO_PERSONS} if self._revealed_arguments else {})
        if models:
            # `create_agent` looks for this method: only an object with the option is around requests.
            self.awrap_model_call = self._wrap_model_call
        self._vault = MemoryVault() if vault is None else vault
        self._worker_threads = WorkerThreads("Redact")
        self._key = key or randomness.token_bytes(32)

    def check_tools(self, tools: Mapping[str, BaseTool]) -> None:
        """Raise `ValueError` if `reveal` names a tool that is not in `tools`, or an argument that its tool lacks."""
        check_tool_names("Redact(reveal=...)", self._revealed_arguments, tools)
        for name in self._revealed_arguments.keys() & tools:
            check_argument_names(f"Redact(reveal={{{name!r}: ...}})", self._revealed_arguments[name] or (), tools[name])

    def redact(self, text: str, *, thread_id: str = "") -> str:
        """Return a text for logs or spans, with tokens in place of secrets; the vault does not store the secrets."""
        return self._make_redaction(thread_id).redact_text(text)

    def redact_value(self, value: Any, *, thread_id: str = "") -> Any:
        """Return a copy of a nested value with tokens in place of secrets; the vault does not store the secrets."""
        return self._make_redaction(thread_id).redact(value)

    async def hide(self, value: Any, *, thread_id: str = "") -> Any:
        """Return a copy of a nested value, such as user input, with tokens for its secrets.

        The values are stored in the vault for this conversation.
        """
        redaction = self._make_redaction(thread_id)
        hidden = await run_if_long(self._worker_threads, value, partial(redaction.redact, value))
        await self._vault.put(thread_id, _storable_values(redaction))
        return hidden

    async def restore(self, value: Any, *, thread_id: str = "") -> Any:
        """Return a copy of a nested value with the original values in place of this conversation's tokens.

        It is meant for the owner of the data.
        """
        restored, _values = await self._reveal_tokens(value, thread_id)
        return restored

    def effect_on(self, tool: BaseTool, policy: CallPolicy) -> str:
        """Return in a few words what this middleware does with the calls of a tool."""
        names = self._revealed_arguments.get(tool.name, ())
        if names is None:  # all arguments
            return "replaces secrets by tokens, and gives the tool the values"
        revealed = f", and gives the tool the values in {', '.join(sorted(names))}" if names else ""
        return f"replaces secrets by tokens{revealed}"

    async def awrap_tool_call(self, request: ToolCallRequest, call_next: CallNext) -> Output:
        """Run a call with tokens for secrets in result, error and arguments, except arguments that `reveal` names."""
        thread_id = _thread_id(request.runtime.config)
        request, known_values = await self._prepare_request(request, thread_id)
        redaction = self._make_redaction(thread_id, known_values)
        failure: Exception | None = None
        output: Output | None = None
        try:
            output = await call_next(request)
        except Exception as error:
            failure = error
        # Outside of the `except` block: an error that is raised inside it would get the original error, with all its
        # secrets, as its context.
        try:
            output = await run_if_long(self._worker_threads, output, partial(redaction.redact, output))
            # Observers receive the exception behind a call's error message.
            if (call := running_call()) is not None and isinstance(call.handled_error, Exception):
                call.handled_error = redaction.redact_error(call.handled_error)
            failure = failure and redaction.redact_error(failure)
            _bind_outcome_to_thread(has_tokens=redaction.has_tokens)
            # Last, because only now the redaction has the values of all tokens.
            await self._store_values(thread_id, redaction)
            if failure is not None:
                raise failure
        finally:
            # The error's traceback refers to this frame, and the redaction holds values: break the reference cycles.
            del failure, redaction
        assert output is not None
        return output

    async def _wrap_model_call(self, request: Any, call_next: Callable[[Any], Awaitable[T]]) -> T:
        """Send a model request with tokens in place of secrets; if it fails, replace the secrets in the error, too."""
        thread_id = _thread_id(ensure_config())
        redaction = self._make_redaction(thread_id)
        prompt = [request.system_message, *request.messages]
        system, *messages = await run_if_long(
            self._worker_threads, prompt, partial(redaction.redact_conversation, prompt)
        )
        await self._store_values(thread_id, redaction)
        _bind_outcome_to_thread(has_tokens=redaction.has_tokens)  # a tool that runs this agent may repeat them
        try:
            return await call_next(request.override(system_message=system, messages=messages))
        except Exception as error:
            failure = error
        # Outside of the `except` block, and with `finally`, for the reasons in `awrap_tool_call`.
        try:
            redaction = self._make_redaction(thread_id, redaction.values)
            failure = redaction.redact_error(failure)
            await self._store_values(thread_id, redaction)
            raise failure
        finally:
            del failure, redaction

    async def _prepare_request(
        self, request: ToolCallRequest, thread_id: str
    ) -> tuple[ToolCallRequest, Mapping[str, str]]:
        """Return the request for the tool, and the secrets that the tool can read, as a dict from token to value."""
        # The tool may repeat these values, so they are replaced in its result.
        call = request.tool_call
        args = call["args"]
        names = self._revealed_arguments.get(call["name"], ())  # `None`: all of them
        revealed_args = {name: value for name, value in args.items() if names is None or name in names}
        hidden_args = {name: args[name] for name in args.keys() - revealed_args.keys()} if revealed_args else args
        redaction = self._make_redaction(thread_id)
        hidden = await run_if_long(self._worker_threads, hidden_args, partial(redaction.redact, hidden_args))
        await self._store_values(thread_id, redaction)
        revealed, values = await self._reveal_tokens(revealed_args, thread_id)
        # The tool may repeat these tokens, and the same token has no value in another conversation.
        _bind_outcome_to_thread(has_tokens=redaction.has_tokens or bool(values))
        if values:
            note("revealed", kinds=sorted({token[1:].partition(":")[0] for token in values}), count=len(values))
        # Secrets that the model wrote itself for a revealed argument: it knows them, but results must not repeat them.
        argument_redaction = self._make_redaction(thread_id)
        await run_if_long(self._worker_threads, revealed, partial(argument_redaction.redact, revealed))
        if hidden is not hidden_args or revealed is not revealed_args:
            request = request.override(tool_call={**call, "args": {**hidden, **revealed}})
        return request, {**argument_redaction.values, **values}

    async def _reveal_tokens(self, value: Any, thread_id: str) -> tuple[Any, dict[str, str]]:
        """Return a copy of a nested value with its tokens replaced by their values, and a dict from token to value."""
        values: dict[str, str] = {}
        for _ in range(_MAX_REVEAL_PASSES):
            tokens = await run_if_long(self._worker_threads, value, partial(_tokens_in, value))
            new_values = await self._vault.get(thread_id, tokens) if tokens else {}
            if not new_values:
                break
            values |= new_values
            reveal = partial(_replace_tokens, new_values)
            value = await run_if_long(self._worker_threads, value, partial(replace_texts, value, reveal))
        return value, values

    async def _store_values(self, thread_id: str, redaction: Redaction) -> None:
        """Store the values of new tokens in the vault."""
        # An error of the vault is only logged: it must not cost the call its result. These tokens cannot be opened
        # later.
        redaction.report_to_observers()
        values = _storable_values(redaction)
        try:
            if values:
                await self._vault.put(thread_id, values)
        except Exception as error:
            error_name = type(error).__qualname__
            _log.warning("the vault of Redact failed with %s; %d tokens cannot be opened", error_name, len(values))
            note("vault_failed", error=error_name, count=len(values))

    def _make_redaction(self, thread_id: str, known_values: Mapping[str, str] | None = None) -> Redaction:
        return Redaction(self._detectors, self._key, thread_id, known_values)


def _bind_outcome_to_thread(*, has_tokens: bool) -> None:
    """If a call contains tokens, mark its outcome as valid in its conversation only, so that caches do not share it."""
    if has_tokens:
        bind_to_thread()


def _storable_values(redaction: Redaction) -> dict[str, str]:
    # Longer values are hidden but not stored, which bounds the vault.
    return {token: value for token, value in redaction.values.items() if len(value) <= MAX_VALUE_CHARS}


def _thread_id(config: Mapping[str, Any]) -> str:
    thread_id = config.get("configurable", {}).get("thread_id")
    return "" if thread_id is None else str(thread_id)


def _tokens_in(value: Any) -> set[str]:
    tokens: set[str] = set()

    def collect(text: str) -> str:
        tokens.update(match[0] for match in TOKEN.finditer(text))
        return text

    replace_texts(value, collect)
    return tokens


def _replace_tokens(values: Mapping[str, str], text: str) -> str:
    return TOKEN.sub(lambda match: values.get(match[0], match[0]), text)
