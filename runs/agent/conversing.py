"""The model as the SDK's loop sees it: where turns are counted, charged, and stopped.

The loop comes here each time it wants an answer, with the whole conversation. So this is the one
place where the run stands between two turns with nothing half done: a stop that was asked for, a
spent budget and a closed gate all take effect here, and the conversation seen here is what a
later stretch of work goes on from.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any, cast

from agents import CustomTool, ModelResponse, ModelSettings, ModelTracing, Tool, Usage
from agents.agent_output import AgentOutputSchemaBase
from agents.handoffs import Handoff
from agents.items import TResponseInputItem, TResponseStreamEvent
from agents.models.interface import Model
from openai.types.responses import (
    ResponseCustomToolCall,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from openai.types.responses.response_prompt_param import ResponsePromptParam
from openai.types.responses.response_usage import InputTokensDetails

from portal.redact import printable
from runs.agent.arguments import MAX_RAW_CHARS, too_much
from runs.agent.failures import GateClosed, ModelFailed
from runs.agent.gate import Closed, Gate, Interrupted, host_failed
from runs.agent.port import Host, RunError, StopRun
from runs.agent.speaker import Answered, Asked, Item, Speaker

MAX_NAME = 128
_CALLS = (ResponseFunctionToolCall, ResponseCustomToolCall)


class Conversing(Model):
    """One stretch of work's model."""

    def __init__(
        self, speaker: Speaker, gate: Gate, host: Host, *, turns_used: int, max_turns: int
    ) -> None:
        self.conversation: list[dict[str, Any]] | None = None
        """What was said when the model was last asked."""
        self.answered: list[dict[str, Any]] = []
        """What the model answered then; empty while it has not."""
        self.turns_used = turns_used
        self._speaker = speaker
        self._gate = gate
        self._host = host
        self._max_turns = max_turns

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff],
        tracing: ModelTracing,
        *,
        previous_response_id: str | None,
        conversation_id: str | None,
        prompt: ResponsePromptParam | None,
    ) -> ModelResponse:
        """Ask the speaker, count, charge. Raises GateClosed and ModelFailed."""
        self.conversation = plain(input)
        self.answered = []
        await self._gate.look()
        if self._gate.closed is None and self.turns_used >= self._max_turns:
            self._gate.close(Closed(stop="budget", error=_turns_spent(self._max_turns)))
        if self._gate.closed is not None:
            raise GateClosed("the run is stopping")
        started = time.monotonic()
        answered = await self._ask(Asked(system_instructions, self.conversation, tools))
        items = unique_calls([clean(item) for item in answered.items], self.conversation, tools)
        self.turns_used += 1
        self._gate.new_turn(_calls(items, tools))
        await self._count(answered, items, round((time.monotonic() - started) * 1000))
        usage = answered.usage
        response = ModelResponse(
            output=cast(Any, items),
            usage=Usage(
                requests=usage.requests,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                total_tokens=usage.input_tokens + usage.output_tokens,
                input_tokens_details=InputTokensDetails(
                    cached_tokens=usage.cached_tokens, cache_write_tokens=0
                ),
            ),
            response_id=answered.response_id,
        )
        self.answered = plain(cast(Any, response.to_input_items()))
        return response

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        """Never used: the speaker reads the endpoint's stream, the loop takes whole answers."""
        raise NotImplementedError("answers are taken whole")

    async def _ask(self, asked: Asked) -> Answered:
        try:
            return await self._gate.or_stop(self._speaker.answer(asked))
        except Interrupted as interrupted:
            raise GateClosed("the run is stopping") from interrupted
        except StopRun as stop:
            self._gate.close(Closed(stop=stop.reason))
            raise GateClosed("the run is stopping") from stop
        except ModelFailed as failed:
            self._gate.close(Closed(error=failed.error, cause=failed))
            raise

    async def _count(self, answered: Answered, items: list[Item], duration_ms: int) -> None:
        """Tell the host what was said and used. Trouble closes the gate; the answer is kept."""
        step = "charge"
        try:
            await self._host.charge(answered.usage)
            step = "event"
            usage = answered.usage
            await self._host.event(
                "model.answered",
                {
                    "turn": self.turns_used,
                    "model": usage.model,
                    "input_tokens": usage.input_tokens,
                    "cached_tokens": usage.cached_tokens,
                    "output_tokens": usage.output_tokens,
                    "tokens_estimated": answered.estimated,
                    "tries": answered.tries,
                    "calls": sum(isinstance(item, _CALLS) for item in items),
                    "duration_ms": duration_ms,
                },
            )
            for item in items:
                text = _text_of(item)
                if text:
                    await self._host.event("agent.message", {"turn": self.turns_used}, text)
        except StopRun as stop:
            self._gate.close(Closed(stop=stop.reason))
        except Exception as error:
            self._gate.close(Closed(error=host_failed(step), cause=error))


def plain(items: str | list[TResponseInputItem]) -> list[dict[str, Any]]:
    """A conversation as plain data that can be written as JSON and given to the loop again."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    copied = json.loads(json.dumps(items, default=_dumped))
    return cast("list[dict[str, Any]]", copied)


def clean(item: Item) -> Item:
    """The item without what no database, no UTF-8 and no reader of JSON could take."""
    if isinstance(item, ResponseOutputMessage):
        content = [
            part.model_copy(update={"text": printable(part.text)})
            for part in item.content
            if isinstance(part, ResponseOutputText)
        ]
        return item.model_copy(update={"content": content})
    if isinstance(item, ResponseFunctionToolCall):
        arguments = printable(item.arguments)
        if not _bearable(arguments):
            arguments = json.dumps("the arguments were ones that no reader of JSON should be given")
        return item.model_copy(
            update={"arguments": arguments, "name": printable(item.name)[:MAX_NAME]}
        )
    if isinstance(item, ResponseCustomToolCall):
        text = printable(item.input)
        if len(text) > MAX_RAW_CHARS:
            text = "the input was too long"
        return item.model_copy(update={"input": text, "name": printable(item.name)[:MAX_NAME]})
    return item


def _bearable(arguments: str) -> bool:
    """Can the SDK's own code, which trusts a model more than we do, be given these?"""
    if too_much(arguments):
        return False
    try:
        value = json.loads(arguments)
    except json.JSONDecodeError:
        return True
    except (ValueError, RecursionError):
        return False
    text = json.dumps(value, ensure_ascii=False)
    return printable(text) == text


def unique_calls(
    items: list[Item], conversation: list[dict[str, Any]], tools: list[Tool]
) -> list[Item]:
    """The same items, every call with an id of its own and in the shape its tool has.

    Some endpoints count their calls from zero in each answer, or give none an id. An id names
    one call for the whole run: approvals, recorded results and outputs hang on it.
    """
    custom = {tool.name for tool in tools if isinstance(tool, CustomTool)}
    taken = {str(item["call_id"]) for item in conversation if item.get("call_id")}
    made: list[Item] = []
    for item in items:
        if isinstance(item, ResponseFunctionToolCall) and item.name in custom:
            item = _as_custom(item)
        elif isinstance(item, ResponseCustomToolCall) and item.name not in custom:
            item = ResponseFunctionToolCall(
                id=item.id,
                type="function_call",
                call_id=item.call_id,
                name=item.name,
                arguments=json.dumps({"input": item.input}),
            )
        if isinstance(item, _CALLS):
            wanted = item.call_id or "call"
            call_id, number = wanted, 1
            while call_id in taken or not call_id:
                number += 1
                call_id = f"{wanted}.{number}"
            taken.add(call_id)
            item = item.model_copy(update={"call_id": call_id})
        made.append(item)
    return made


def _as_custom(item: ResponseFunctionToolCall) -> ResponseCustomToolCall:
    """A patch that came wrapped in JSON although the tool takes plain text."""
    try:
        given = json.loads(item.arguments)
    except (ValueError, RecursionError):
        given = None
    values = list(given.values()) if isinstance(given, dict) else []
    text = values[0] if len(values) == 1 and isinstance(values[0], str) else item.arguments
    return ResponseCustomToolCall(
        id=item.id, type="custom_tool_call", call_id=item.call_id, name=item.name, input=text
    )


def _calls(items: list[Item], tools: list[Tool]) -> dict[str, str]:
    """The calls that will come to the gate: those of tools that exist."""
    names = {tool.name for tool in tools}
    calls: dict[str, str] = {}
    for item in items:
        if isinstance(item, ResponseFunctionToolCall) and item.name in names:
            calls[item.call_id] = item.arguments
        elif isinstance(item, ResponseCustomToolCall) and item.name in names:
            calls[item.call_id] = item.input
    return calls


def _text_of(item: Item) -> str:
    if not isinstance(item, ResponseOutputMessage):
        return ""
    return "".join(part.text for part in item.content if isinstance(part, ResponseOutputText))


def _turns_spent(max_turns: int) -> RunError:
    return RunError(
        "control",
        "turns_spent",
        f"The agent used all {max_turns} turns that the contract allows. Allow more turns, or "
        "make the job smaller.",
        retry_safe=False,
    )


def _dumped(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_unset=True)
    raise TypeError(f"{type(value).__name__} cannot be part of a conversation")
