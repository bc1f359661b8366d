"""Who answers when the model is asked: what all of them have in common.

A speaker gives one whole answer to one request. It knows nothing of tools being executed, of
turns or of budgets; `conversing.py` puts it into the SDK's loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from agents import Tool
from openai.types.responses import (
    ResponseCustomToolCall,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseReasoningItem,
)

from runs.agent.port import UsageDelta

Item: TypeAlias = (
    ResponseOutputMessage
    | ResponseFunctionToolCall
    | ResponseCustomToolCall
    | ResponseReasoningItem
)
"""The only things an answer may hold. There are no tools on the side of the model."""


@dataclass(frozen=True)
class Asked:
    """One request: the whole conversation, oldest first, as items of the Responses wire."""

    instructions: str | None
    conversation: list[dict[str, Any]]
    tools: list[Tool]


@dataclass(frozen=True)
class Answered:
    """One answer. `tries` counts requests, the successful one included."""

    items: list[Item]
    usage: UsageDelta
    response_id: str | None
    tries: int = 1
    estimated: bool = False
    """The endpoint did not say what it used, so tokens were estimated from the length."""


class Speaker(Protocol):
    """Gives answers. Raises `ModelFailed`; may be cancelled at any time."""

    custom_tools: bool
    images: bool

    async def answer(self, asked: Asked) -> Answered:
        """One whole answer."""

    async def close(self) -> None:
        """Let go of connections."""
