"""A model endpoint on this machine: the Responses wire with streaming, and Chat Completions.

What it answers is a list of replies, one per request, so a test can say: a rate limit first, then
a broken connection, then an answer. It checks of each request what the wire requires.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Usage = Mapping[str, int] | None


@dataclass(frozen=True)
class Reply:
    """One answer of the server."""

    output: tuple[Mapping[str, Any], ...] = ()
    usage: Usage = field(default_factory=lambda: {"input": 100, "cached": 40, "output": 7})
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"{}"
    """Of a status other than 200."""
    then: Literal[
        "complete", "cut", "silence", "failed", "incomplete", "garbage", "no_end", "error"
    ] = "complete"
    code: str = "server_error"
    """Of `failed` and `error`."""


def text(words: str) -> dict[str, Any]:
    return {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": words, "annotations": []}],
    }


def refusal(words: str) -> dict[str, Any]:
    return {**text(""), "content": [{"type": "refusal", "refusal": words}]}


def function(call_id: str, name: str, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{call_id}",
        "call_id": call_id,
        "name": name,
        "status": "completed",
        "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
    }


def custom(call_id: str, name: str, value: str) -> dict[str, Any]:
    return {
        "type": "custom_tool_call",
        "id": f"ct_{call_id}",
        "call_id": call_id,
        "name": name,
        "input": value,
    }


def reasoning(encrypted: str | None) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": encrypted}


def says(*output: Mapping[str, Any], **more: Any) -> Reply:
    return Reply(output=output, **more)


@dataclass
class Received:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class ModelServer(ThreadingHTTPServer):
    """Plays its replies in order; a request too many is answered with status 500."""

    daemon_threads = True

    def __init__(self, replies: list[Reply]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies = list(replies)
        self.received: list[Received] = []
        self.released = threading.Event()
        """Set when the test is over: ends silences."""
        self.silent = threading.Event()
        """Set when a request has been left without an answer."""

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def reply(self, body: Mapping[str, Any]) -> Reply:
        """What is answered to this request."""
        return self.replies.pop(0) if self.replies else Reply(status=500)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ModelServer

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", "0"))
        body = json.loads(self.rfile.read(length))
        self.server.received.append(Received(self.path, dict(self.headers), body))
        reply = self.server.reply(body)
        if reply.status != 200:
            self._plain(reply)
        elif reply.then == "silence":
            self.server.silent.set()
            self.server.released.wait(60)
            self.close_connection = True
        else:
            self._stream(reply, body)

    def _plain(self, reply: Reply) -> None:
        self.send_response(reply.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(reply.body)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def _stream(self, reply: Reply, body: dict[str, Any]) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        chat = self.path.endswith("/chat/completions")
        for event in (_chat if chat else _responses)(reply, body):
            self.wfile.write(event)
            self.wfile.flush()


def _event(kind: str, data: Mapping[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()


def _responses(reply: Reply, body: dict[str, Any]) -> Iterator[bytes]:
    assert body["stream"] is True
    assert body["store"] is False
    response: dict[str, Any] = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "in_progress",
        "model": body["model"],
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "instructions": None,
        "metadata": {},
        "temperature": 1.0,
        "top_p": 1.0,
        "error": None,
        "incomplete_details": None,
    }
    number = 0
    yield _event("response.created", {"response": response, "sequence_number": number})
    for index, item in enumerate(reply.output):
        number += 1
        at = {"output_index": index, "sequence_number": number}
        begun = {**item, "content": []} if item["type"] == "message" else dict(item)
        yield _event("response.output_item.added", {"item": begun, **at})
        if item["type"] == "message":
            for part in item["content"]:
                words = part.get("text", part.get("refusal", ""))
                middle = len(words) // 2
                for piece in (words[:middle], words[middle:]):
                    yield _event(
                        "response.output_text.delta",
                        {
                            "item_id": item["id"],
                            "content_index": 0,
                            "delta": piece,
                            "logprobs": [],
                            **at,
                        },
                    )
        yield _event("response.output_item.done", {"item": dict(item), **at})
    if reply.then == "cut":
        return
    if reply.then == "garbage":
        yield b"event: response.completed\ndata: {this is not json\n\n"
        return
    if reply.then == "error":
        yield _event(
            "error",
            {"code": reply.code, "message": "m", "param": None, "sequence_number": number + 1},
        )
        return
    usage = None
    if reply.usage is not None:
        usage = {
            "input_tokens": reply.usage["input"],
            "input_tokens_details": {"cached_tokens": reply.usage["cached"]},
            "output_tokens": reply.usage["output"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.usage["input"] + reply.usage["output"],
        }
    ended = {**response, "output": [dict(item) for item in reply.output], "usage": usage}
    if reply.then == "failed":
        ended |= {"status": "failed", "error": {"code": reply.code, "message": "m"}}
        yield _event("response.failed", {"response": ended, "sequence_number": number + 1})
    elif reply.then == "incomplete":
        ended |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        yield _event("response.incomplete", {"response": ended, "sequence_number": number + 1})
    else:
        ended["status"] = "completed"
        yield _event("response.completed", {"response": ended, "sequence_number": number + 1})


def _chat(reply: Reply, body: dict[str, Any]) -> Iterator[bytes]:
    assert body["stream"] is True
    assert all(tool["type"] == "function" for tool in body.get("tools", []))

    def chunk(delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choices = [{"index": 0, "delta": dict(delta), "finish_reason": finish}]
        data = {
            "id": "chat_1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": body["model"],
            "choices": choices,
            **more,
        }
        return f"data: {json.dumps(data)}\n\n".encode()

    yield chunk({"role": "assistant", "content": ""})
    number = 0
    for item in reply.output:
        if item["type"] == "message":
            yield chunk({"content": item["content"][0]["text"]})
        else:
            called = {"name": item["name"], "arguments": item["arguments"]}
            entry = {
                "index": number,
                "id": item["call_id"],
                "type": "function",
                "function": called,
            }
            yield chunk({"tool_calls": [entry]})
            number += 1
    if reply.then == "cut":
        return
    yield chunk({}, "tool_calls" if number else "stop")
    if reply.usage is not None and body.get("stream_options", {}).get("include_usage"):
        usage = {
            "prompt_tokens": reply.usage["input"],
            "completion_tokens": reply.usage["output"],
            "total_tokens": reply.usage["input"] + reply.usage["output"],
            "prompt_tokens_details": {"cached_tokens": reply.usage["cached"]},
        }
        yield chunk({}, None, usage=usage).replace(b'"choices": [{', b'"choices": [{', 1)
    yield b"data: [DONE]\n\n"


@contextmanager
def model_server(*replies: Reply, kind: type[ModelServer] = ModelServer) -> Iterator[ModelServer]:
    """A running server. Nothing of it is left afterwards."""
    server = kind(list(replies))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
