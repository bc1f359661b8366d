"""Runs one function in a process of its own. Started as a program, with nothing of the portal.

Reads one JSON object from standard input and writes one to what was standard output; whatever the
function prints goes nowhere. `{"kind": "returned" | "refused" | "failed", "value": …}`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


def load(name: str) -> Any:
    """The object `module:path.to.it` means."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def main() -> None:
    """Answer one call."""
    given = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # the parent gave standard error nowhere to go
        try:
            sys.path.insert(0, given.pop("path"))
            function = load(given.pop("function"))
        except Exception as error:
            said = {"kind": "refused", "value": f"It could not be loaded ({type(error).__name__})."}
            json.dump(said, out)
            return
        try:
            text = json.dumps({"kind": "returned", "value": dict(function(given))})
        except PermissionError as error:
            text = json.dumps({"kind": "refused", "value": str(error)})
        except Exception as error:
            # Its words could hold the secret that it was given.
            text = json.dumps({"kind": "failed", "value": type(error).__name__})
        out.write(text)


if __name__ == "__main__":
    main()
