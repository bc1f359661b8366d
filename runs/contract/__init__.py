"""The job contract: one reviewed page that says what a run is for and what it may do.

A contract is a TOML or YAML file, or the browser form that writes the same file (`render_toml`).
`parse_contract` reads text, `contract_from_data` reads what `Contract.to_data` wrote; both check
everything and raise `ContractRefused` with a list of `Problem`s, each with field, line, reason and
remedy. `EXAMPLE` is a complete file.

The rules that need a sentence:

* **Paths** in a contract are relative and go down only. Absolute paths, `..`, backslashes, `.git`
  and empty parts are refused. A repository on the portal's own machine (`source.path`,
  `target.path`) is named from the *source root*, a directory of the portal's settings.
* **Layout**: the source becomes `repo/`; `input/`, read-only, holds `inputs` (files and folders of
  the source, at the same commit) and `files` (written out in the contract); `output/` is the tray.
* **Refs**: a branch, tag or commit. It is resolved to a commit outside the sandbox before the run
  begins; a ref that is missing is refused there, by `runs.source`.
* **Submodules** are refused, or left out (`submodules = "leave-out"`) and listed.
* **Git LFS pointers** are refused, or kept as the pointer files they are (`lfs = "keep-pointers"`).
* **Links out** of the repository are refused, or left out (`links_out = "leave-out"`) and listed.
  Links that stay inside are kept.
* **Secrets** never stand in a contract. Text with the shape of a known token, an address with a
  password, an environment variable named like a credential and a random-looking value are refused:
  name a reference or a `credential` instead. A `credential` is used by the outer runtime only.
* **Network**: off, unless a rule names host, port, purpose and minutes. What no rule names does not
  pass; private addresses do not even with one, unless the portal's settings list the host.
* **Nothing invisible**: control, bidirectional and zero-width characters are refused everywhere.
* **Unknown keys** are refused, with the nearest known one: a misspelt limit must not be no limit.
* **Tool names** have no dots, because model providers refuse function names that have.
* **Databases** are read only: by one declared statement whose `:name` are arguments, or by a SELECT
  of the agent's that reads the listed tables. `:acting_for` is the person the run acts for.
* **Retries** are for idempotent tools: GET, PUT and DELETE unless the contract says otherwise, and
  others where it says that the service does a request with the same Idempotency-Key once. What
  then gets no answer is unknown all the same, and no other request is sent twice.
* **Fallback**: the tool-only variant, offered to a person after a failure of the sandbox. It names
  brokered tools of the same contract and adds nothing: no sandbox, no network, no verification.
* **Sizes**: the file 256 KiB, instructions 60,000 characters, 50 extra files of 64,000 characters,
  30 tools of each kind, schemas 16 KB without `$ref`, statements 8,000 characters.

The digest covers every field with its default written out, so adding a comment or leaving out a
default does not change it and any other change does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portal.canonical import digest
from runs.contract.example import EXAMPLE
from runs.contract.fields import ContractRefused, Problem
from runs.contract.read import read_contract
from runs.contract.shape import (
    ASK_PERSON,
    BUILTIN_TOOLS,
    CAPABILITIES,
    REQUEST_NETWORK,
    Agent,
    BrokeredTool,
    Contract,
    Fallback,
    Gate,
    HttpTool,
    Limits,
    Network,
    NetworkRule,
    Output,
    PythonTool,
    Reference,
    Source,
    SqlTool,
    Target,
    Tools,
    Verification,
)
from runs.contract.text import Format, read_text
from runs.contract.write import render_toml, with_rule

__all__ = [
    "ASK_PERSON",
    "BUILTIN_TOOLS",
    "CAPABILITIES",
    "EXAMPLE",
    "REQUEST_NETWORK",
    "Agent",
    "BrokeredTool",
    "Contract",
    "ContractRefused",
    "Fallback",
    "Format",
    "Gate",
    "HttpTool",
    "Limits",
    "Network",
    "NetworkRule",
    "Output",
    "Problem",
    "PythonTool",
    "Reference",
    "Source",
    "SqlTool",
    "Target",
    "Tools",
    "Verification",
    "contract_digest",
    "contract_from_data",
    "manifest_digest",
    "parse_contract",
    "render_toml",
    "with_rule",
]

MANIFEST = ("source", "inputs", "files", "environment", "capabilities", "output")


def parse_contract(text: str, fmt: Format) -> Contract:
    """The contract in that text, or `ContractRefused` with lines."""
    data, lines = read_text(text, fmt)
    return read_contract(data, lines)


def contract_from_data(data: Mapping[str, Any]) -> Contract:
    """The contract in stored or posted data, or `ContractRefused` without lines.

    The same checks as for a file: stored data may have been written by an older, laxer version.
    """
    return read_contract(data)


def contract_digest(contract: Contract) -> str:
    """SHA-256 over the RFC 8785 form of the whole contract, in hexadecimal."""
    return digest(contract.to_data())


def manifest_digest(contract: Contract) -> str:
    """SHA-256 over what a fresh workspace holds: source, inputs, files, environment, capabilities
    and the paths that may leave it. Equal for two contracts that differ only in words or limits."""
    data = contract.to_data()
    return digest({key: data[key] for key in MANIFEST})
