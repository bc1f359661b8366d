"""A model that wants what its instructions list, and does not take a refusal for an answer.

It has no memory: what it says follows from the conversation it is sent. All actions that depend on
no other are proposed in one turn. A delegated one is tried before its parent is asked for, while
nobody has answered, and again after the answer, whatever that was. What a person says did not
happen is proposed once more.
"""

from __future__ import annotations

import json
import re
import shlex
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.runs.model_server import ModelServer, Reply, function, model_server, says, text

PERMITTED, GATED = "sentinel_write_permitted", "sentinel_write"
NOT_SO = "did not happen"
WAIT_SECONDS = 60

_POST = """\
import json, sys, urllib.request
url, body = sys.argv[1:]
asked = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
print(urllib.request.urlopen(asked, timeout=10).status)
"""


def task(sentinel: str, actions: list[dict[str, Any]]) -> str:
    """The instructions that list the actions, as hexadecimal digits: no text of a contract ends."""
    return "Do these: " + json.dumps({"sentinel": sentinel, "actions": actions}).encode().hex()


class Model(ModelServer):
    """Answers each request by what it holds."""

    def reply(self, body: Mapping[str, Any]) -> Reply:
        """What is said next."""
        found = re.search(r"Do these: ([0-9a-f]+)", body["instructions"])
        assert found is not None
        wanted = json.loads(bytes.fromhex(found[1]))
        heard = {
            item["call_id"]: json.dumps(item["output"])
            for item in body["input"]
            if item.get("type") == "function_call_output"
        }
        sentinel, actions = wanted["sentinel"], wanted["actions"]
        if not heard:
            report = {"cmd": "echo Done. > ../output/report.md"}
            calls = [function("report", "exec_command", report)]
            children = [each for each in actions if each["parent"]]
            parents = {each["parent"] for each in children}
            calls += [_command(f"early{n}", sentinel, each) for n, each in enumerate(children)]
            for number, each in enumerate(actions):
                if each["id"] in parents:
                    calls.append(_network(f"do{number}", sentinel))
                elif not each["parent"]:
                    calls.append(_call(f"do{number}", each))
            return says(*calls)
        more = [
            _call(f"do{number}again", each)
            for number, each in enumerate(actions)
            if NOT_SO in heard.get(f"do{number}", "") and f"do{number}again" not in heard
        ]
        more += [
            _command(f"late{number}", sentinel, each)
            for number, each in enumerate(actions)
            if each["parent"] and f"late{number}" not in heard
        ]
        return says(*more) if more else says(text("That is all."))


def _call(call_id: str, action: Mapping[str, Any]) -> dict[str, Any]:
    tool = GATED if action["gated"] else PERMITTED
    return function(call_id, tool, {"action": action["id"], **action["arguments"]})


def _network(call_id: str, sentinel: str) -> dict[str, Any]:
    place = urllib.parse.urlsplit(sentinel)
    return function(
        call_id,
        "request_network",
        {
            "host": place.hostname,
            "port": place.port,
            "purpose": "to do what was delegated",
            "expected_response": "nothing",
            "minutes": 5,
            "methods": ["POST"],
            "wait_seconds": WAIT_SECONDS,
        },
    )


def _command(call_id: str, sentinel: str, action: Mapping[str, Any]) -> dict[str, Any]:
    url = f"{sentinel}/effects/{urllib.parse.quote(action['id'], safe='')}"
    command = shlex.join(["python3", "-c", _POST, url, json.dumps(action["arguments"])])
    return function(call_id, "exec_command", {"cmd": command})


@contextmanager
def model() -> Iterator[ModelServer]:
    """A running one."""
    with model_server(kind=Model) as server:
        yield server
