"""A recorded transcript as the model."""

from __future__ import annotations

from typing import Any

from openai.types.responses import (
    ResponseCustomToolCall,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from runs.agent.arguments import write_object
from runs.agent.failures import ModelFailed
from runs.agent.port import RunError, UsageDelta
from runs.agent.speaker import Answered, Asked, Item
from runs.agent.transcript import (
    Call,
    Message,
    Said,
    Step,
    Transcript,
    TranscriptMismatch,
    next_step,
    outputs_of,
)


class PlayerSpeaker:
    """Answers what was recorded. Keeps no place: each time the conversation says where it is."""

    custom_tools = True
    images = True

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript

    async def close(self) -> None:
        """Nothing is held."""

    async def answer(self, asked: Asked) -> Answered:
        """The recorded answer that comes next."""
        conversation = [said for item in asked.conversation if (said := _said(item)) is not None]
        try:
            step = next_step(self._transcript, conversation)
            outputs = outputs_of(conversation)
            items = [_item(step, n, entry, outputs) for n, entry in enumerate(step.output)]
        except TranscriptMismatch as mismatch:
            raise ModelFailed(
                RunError(
                    "control",
                    "transcript_mismatch",
                    f"The recorded transcript cannot go on. {mismatch}",
                    retry_safe=False,
                )
            ) from mismatch
        usage = UsageDelta(
            1,
            step.usage.input_tokens,
            step.usage.cached_tokens,
            step.usage.output_tokens,
            self._transcript.model,
        )
        return Answered(items, usage, response_id=f"recorded:{step.where}")


def _item(step: Step, number: int, entry: Message | Call, outputs: dict[str, str]) -> Item:
    identifier = f"{step.where}.output[{number}]"
    if isinstance(entry, Message):
        text = ResponseOutputText(type="output_text", text=entry.text, annotations=[])
        return ResponseOutputMessage(
            id=identifier, type="message", role="assistant", status="completed", content=[text]
        )
    arguments = entry.written(outputs)
    if entry.tool == "apply_patch":
        patch = arguments.get("patch") if entry.raw is None else entry.raw
        return ResponseCustomToolCall(
            id=identifier,
            type="custom_tool_call",
            call_id=entry.id,
            name=entry.tool,
            input=patch if isinstance(patch, str) else write_object(arguments),
        )
    return ResponseFunctionToolCall(
        id=identifier,
        type="function_call",
        call_id=entry.id,
        name=entry.tool,
        arguments=write_object(arguments) if entry.raw is None else entry.raw,
    )


def _said(item: dict[str, Any]) -> Said | None:
    """An item of the conversation as the transcript knows it."""
    kind = item.get("type", "message")
    if kind in ("function_call", "custom_tool_call"):
        return Said("call", id=str(item.get("call_id")))
    if kind in ("function_call_output", "custom_tool_call_output"):
        return Said("output", id=str(item.get("call_id")), text=_text(item.get("output")))
    if kind == "message" and item.get("role") == "user":
        return Said("person")
    if kind == "message" and item.get("role") == "assistant":
        return Said("message", id=str(item.get("id", "")))
    return None


def _text(output: Any) -> str:
    if isinstance(output, str):
        return output
    if isinstance(output, list):
        return "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in output if part)
    return str(output)
