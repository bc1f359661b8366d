"""A model behind an OpenAI-compatible endpoint: the Responses wire, or Chat Completions.

An answer is read as a stream and used only when it is whole. Nothing of a broken one was acted
on, so a rate limit, a server error, a silence or a cut connection is tried again with a bounded
wait; what cannot get better by itself is reported at once. The endpoint is asked not to store
anything, the environment's OpenAI settings are not used, and no error text quotes a server.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

import certifi
import httpx
import openai
from agents import ModelSettings, ModelTracing, OpenAIChatCompletionsModel, OpenAIResponsesModel
from agents.exceptions import ModelBehaviorError
from agents.models.interface import Model
from openai import AsyncOpenAI
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseCustomToolCall,
    ResponseFunctionToolCall,
    ResponseOutputItem,
    ResponseOutputMessage,
    ResponseOutputRefusal,
    ResponseOutputText,
    ResponseReasoningItem,
)

from runs.agent.failures import ModelFailed, causes
from runs.agent.port import ModelEndpoint, RunError, UsageDelta
from runs.agent.speaker import Answered, Asked, Item

FIRST_WAIT_S = 0.5
MAX_ANSWER_CHARS = 8_000_000
CHARS_PER_TOKEN = 4
"""A careful estimate for endpoints that do not count."""

Retrying = Callable[[int, float, str], Awaitable[None]]
"""Told before each new try: which one it will be, after how many seconds, and why."""

_TRY_AGAIN_CODES = {"server_error", "rate_limit_exceeded", "server_is_overloaded", "overloaded"}


class _Broken(Exception):
    """This try failed. `again` says whether another one may succeed."""

    def __init__(self, code: str, text: str, *, again: bool, after: float | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.again = again
        self.after = after


class EndpointSpeaker:
    """One model at one endpoint, for one stretch of work (its connections belong to one loop)."""

    def __init__(
        self,
        endpoint: ModelEndpoint,
        model: str,
        *,
        max_output_tokens: int | None,
        retrying: Retrying,
    ) -> None:
        self.custom_tools = endpoint.wire == "responses"
        self.images = endpoint.wire == "responses"
        self._endpoint = endpoint
        self._name = model
        self._retrying = retrying
        self._http = _http_client(endpoint)
        client = _client(endpoint, self._http)
        self._model: Model
        if endpoint.wire == "responses":
            self._model = OpenAIResponsesModel(model, client)
            self._settings = ModelSettings(
                max_tokens=max_output_tokens,
                store=False,
                response_include=["reasoning.encrypted_content"],
            )
        else:
            self._model = OpenAIChatCompletionsModel(model, client)
            self._settings = ModelSettings(max_tokens=max_output_tokens, include_usage=True)

    async def close(self) -> None:
        """Let go of connections."""
        await self._http.aclose()

    async def answer(self, asked: Asked) -> Answered:
        """One whole answer, after as many tries as the endpoint's settings allow."""
        tries = 0
        wait = FIRST_WAIT_S
        while True:
            tries += 1
            try:
                response = await self._try(asked)
                return self._answered(asked, response, tries)
            except _Broken as broken:
                problem = broken
            if not problem.again or tries > self._endpoint.max_retries:
                raise _failed(problem, tries)
            # Many runs may have been told off at once: they should not come back at once.
            spread = wait * (0.5 + random.random() / 2)  # noqa: S311
            pause = spread if problem.after is None else problem.after
            if pause > self._endpoint.max_retry_wait_s:
                raise _failed(problem, tries)
            await self._retrying(tries + 1, pause, problem.code)
            await asyncio.sleep(pause)
            wait = min(wait * 2, self._endpoint.max_retry_wait_s)

    async def _try(self, asked: Asked) -> Response:
        """One request. Raises _Broken for whatever goes wrong with it."""
        try:
            return await self._read(asked)
        except _Broken:
            raise
        except Exception as error:
            raise _understood(error) from error

    async def _read(self, asked: Asked) -> Response:
        stream = self._model.stream_response(
            asked.instructions,
            cast(Any, asked.conversation),
            self._settings,
            asked.tools,
            None,
            [],
            ModelTracing.DISABLED,
            previous_response_id=None,
            conversation_id=None,
            prompt=None,
        )
        events = cast(AsyncIterator[Any], aiter(stream))
        size = 0
        try:
            while True:
                # The limit is on silence, not on the whole: a long answer is not a stuck one.
                async with asyncio.timeout(self._endpoint.timeout_s):
                    event = await anext(events, None)
                if event is None:
                    raise _Broken(
                        "model_disconnected", "The answer of the model broke off.", again=True
                    )
                if isinstance(event, ResponseCompletedEvent):
                    return event.response
                _raise_if_failed(event)
                size += len(getattr(event, "delta", "") or "")
                if size > MAX_ANSWER_CHARS:
                    raise _Broken("model_malformed", "The answer does not end.", again=False)
        finally:
            await _closed(events)

    def _answered(self, asked: Asked, response: Response, tries: int) -> Answered:
        items = [item for raw in response.output or [] if (item := _item(raw)) is not None]
        if not any(not isinstance(item, ResponseReasoningItem) for item in items):
            raise _Broken("model_malformed", "The model gave an empty answer.", again=True)
        usage = response.usage
        reported = usage is not None and (usage.input_tokens or usage.output_tokens)
        if usage is not None and reported:
            details = usage.input_tokens_details
            cached = (details.cached_tokens if details is not None else 0) or 0
            delta = UsageDelta(
                1,
                max(usage.input_tokens or 0, 0),
                min(max(cached, 0), max(usage.input_tokens or 0, 0)),
                max(usage.output_tokens or 0, 0),
                self._name,
            )
        else:
            asked_chars = len(json.dumps(asked.conversation, default=str))
            asked_chars += len(asked.instructions or "")
            told_chars = sum(len(item.model_dump_json()) for item in items)
            delta = UsageDelta(
                1,
                asked_chars // CHARS_PER_TOKEN + 1,
                0,
                told_chars // CHARS_PER_TOKEN + 1,
                self._name,
            )
        return Answered(items, delta, response.id, tries, estimated=not reported)


# ---------------------------------------------------------------------------------------------
# What came
# ---------------------------------------------------------------------------------------------


def _item(raw: ResponseOutputItem) -> Item | None:
    """An item of the answer made anew, with nothing in it but what we use."""
    if isinstance(raw, ResponseOutputMessage):
        texts = [part.text or "" for part in raw.content if isinstance(part, ResponseOutputText)]
        refusals = [part for part in raw.content if isinstance(part, ResponseOutputRefusal)]
        if refusals and not "".join(texts).strip():
            raise _Broken("model_refused", "The model refused to do this.", again=False)
        return ResponseOutputMessage(
            id=raw.id or "msg",
            type="message",
            role="assistant",
            status="completed",
            content=[
                ResponseOutputText(type="output_text", text=text, annotations=[]) for text in texts
            ],
        )
    if isinstance(raw, ResponseFunctionToolCall):
        if not isinstance(raw.name, str) or not raw.name:
            raise _Broken("model_malformed", "The model called a tool without a name.", again=True)
        return ResponseFunctionToolCall(
            id=raw.id,
            type="function_call",
            call_id=raw.call_id or "",
            name=raw.name,
            arguments=raw.arguments if isinstance(raw.arguments, str) else "",
        )
    if isinstance(raw, ResponseCustomToolCall):
        return ResponseCustomToolCall(
            id=raw.id,
            type="custom_tool_call",
            call_id=raw.call_id or "",
            name=raw.name,
            input=raw.input if isinstance(raw.input, str) else "",
        )
    if isinstance(raw, ResponseReasoningItem):
        # Without its encrypted content the endpoint would look for it among stored answers,
        # and it was asked to store none.
        if not raw.encrypted_content:
            return None
        return ResponseReasoningItem(
            id=raw.id,
            type="reasoning",
            summary=raw.summary or [],
            encrypted_content=raw.encrypted_content,
        )
    raise _Broken(
        "model_unexpected_item",
        f"The model answered with an item of type {_word(raw.type)!r}, which no tool of this "
        "agent has.",
        again=False,
    )


def _raise_if_failed(event: Any) -> None:
    kind = getattr(event, "type", "")
    if kind in ("error", "response.error"):
        code = _word(getattr(event, "code", None))
        raise _Broken(
            "model_error", f"The model reported an error ({code}).", again=code in _TRY_AGAIN_CODES
        )
    if kind == "response.failed":
        error = getattr(getattr(event, "response", None), "error", None)
        code = _word(getattr(error, "code", None))
        raise _Broken(
            "model_error", f"The model reported an error ({code}).", again=code in _TRY_AGAIN_CODES
        )
    if kind == "response.incomplete":
        details = getattr(getattr(event, "response", None), "incomplete_details", None)
        reason = _word(getattr(details, "reason", None))
        raise _Broken("model_incomplete", f"The answer was cut off ({reason}).", again=False)


def _understood(error: BaseException) -> _Broken:
    """What an exception of the client means."""
    for cause in causes(error):
        if isinstance(cause, TimeoutError | openai.APITimeoutError | httpx.TimeoutException):
            return _Broken("model_timeout", "The model did not answer in time.", again=True)
        if isinstance(cause, openai.APIStatusError):
            return _status(cause)
        if isinstance(cause, openai.APIResponseValidationError | json.JSONDecodeError):
            return _malformed()
        if isinstance(cause, openai.APIConnectionError | httpx.TransportError):
            return _Broken(
                "model_unreachable", "The model could not be reached, or broke off.", again=True
            )
        if isinstance(cause, openai.APIError):
            code = _word(getattr(cause, "code", None))
            return _Broken(
                "model_error",
                f"The model reported an error ({code}).",
                again=code in _TRY_AGAIN_CODES,
            )
    if isinstance(error, ModelBehaviorError | ValueError | TypeError | AttributeError | KeyError):
        return _malformed()
    raise error


def _status(error: openai.APIStatusError) -> _Broken:
    status = error.status_code
    if status in (401, 403):
        return _Broken(
            "model_unauthorized",
            f"The model's endpoint refused the credential (status {status}).",
            again=False,
        )
    if status == 404:
        return _Broken(
            "model_not_found", "The endpoint does not know this model (status 404).", again=False
        )
    if status == 429:
        if _word(error.code) == "insufficient_quota":
            return _Broken(
                "model_quota", "The quota at the model's endpoint is spent.", again=False
            )
        return _Broken(
            "model_rate_limited",
            "The model's endpoint limits the rate of requests.",
            again=True,
            after=_retry_after(error.response.headers),
        )
    if status in (408, 409) or status >= 500:
        return _Broken(
            "model_unavailable",
            f"The model's endpoint failed (status {status}).",
            again=True,
            after=_retry_after(error.response.headers),
        )
    return _Broken(
        "model_bad_request",
        f"The model's endpoint refused the request (status {status}, {_word(error.code)}).",
        again=False,
    )


def _malformed() -> _Broken:
    return _Broken("model_malformed", "The model's answer could not be read.", again=True)


def _retry_after(headers: Any) -> float | None:
    """Seconds that the server asks to wait, from a number or a date; None when it says nothing."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        pass
    else:
        return max(seconds, 0.0) if math.isfinite(seconds) else None
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max((at - datetime.now(UTC)).total_seconds(), 0.0)


def _word(code: object) -> str:
    """A server's error code if it is a plain word; anything else could be anything."""
    text = str(getattr(code, "value", code) or "")
    return text if re.fullmatch(r"[a-z0-9_.-]{1,60}", text) else "no code"


def _failed(problem: _Broken, tries: int) -> ModelFailed:
    often = "" if tries == 1 else f" It was asked {tries} times."
    remedy = _REMEDIES.get(problem.code, "")
    return ModelFailed(
        RunError("control", problem.code, f"{problem.text}{often}{remedy}", problem.again)
    )


_REMEDIES = {
    "model_unauthorized": " Check the key of the model endpoint.",
    "model_not_found": " Check the name of the model in the contract.",
    "model_quota": " Raise the quota there, or use another endpoint.",
    "model_rate_limited": " Start again later.",
    "model_incomplete": " Allow more output tokens in the contract.",
}


async def _closed(events: AsyncIterator[Any]) -> None:
    close = getattr(events, "aclose", None)
    if close is not None:
        try:
            await close()
        except (openai.OpenAIError, httpx.HTTPError, RuntimeError, ModelBehaviorError):
            # The answer is whole, or the try failed already: this cannot change either.
            return


# ---------------------------------------------------------------------------------------------
# The connection
# ---------------------------------------------------------------------------------------------


def _http_client(endpoint: ModelEndpoint) -> httpx.AsyncClient:
    # trust_env would let a .netrc or a proxy variable of the worker decide where a key goes.
    trusted = os.environ.get("SSL_CERT_FILE") or certifi.where()
    return httpx.AsyncClient(
        trust_env=False,
        follow_redirects=False,
        timeout=httpx.Timeout(endpoint.timeout_s, connect=min(endpoint.timeout_s, 20.0)),
        verify=ssl.create_default_context(cafile=trusted),
    )


def _client(endpoint: ModelEndpoint, http: httpx.AsyncClient) -> AsyncOpenAI:
    client = AsyncOpenAI(
        api_key=endpoint.api_key or "none",
        base_url=endpoint.base_url,
        max_retries=0,
        http_client=cast(Any, http),
    )
    # The client takes these from the environment of the worker; a tenant's endpoint is not to
    # learn them.
    client.organization = None
    client.project = None
    client._custom_headers = {}
    return client
