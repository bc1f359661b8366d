"""From a pinned contract to the brief of its agent."""

from __future__ import annotations

from django.conf import settings

from runs.agent import transcript
from runs.agent.port import (
    ASK_PERSON,
    BUILTIN_TOOLS,
    REQUEST_NETWORK,
    AgentBrief,
    BriefRefused,
    ModelEndpoint,
    ToolDeclaration,
)
from runs.contract import Contract
from runs.models import Run
from runs.outside import forerunners, outward_acts
from runs.states import CallState

QUESTION_SCHEMA = {
    "type": "object",
    "properties": {
        "question": {"type": "string", "minLength": 1, "maxLength": 2000},
        "choices": {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": 200},
            "maxItems": 8,
        },
    },
    "required": ["question", "choices"],
    "additionalProperties": False,
}


def make_brief(run: Run, contract: Contract, recording: bytes | None) -> AgentBrief:
    """All the agent is made of. Raises `BriefRefused` with neither a recording nor a model."""
    endpoint = None
    if recording is None:
        if not settings.MODEL_BASE_URL:
            raise BriefRefused(
                "runs.no_model",
                "No model is configured and the contract names no recorded transcript.",
                "Set MODEL_BASE_URL and MODEL_API_KEY, or name a transcript under [agent].",
            )
        endpoint = ModelEndpoint(
            settings.MODEL_BASE_URL, settings.MODEL_API_KEY, timeout_s=settings.MODEL_TIMEOUT
        )
    return AgentBrief(
        run_id=str(run.public_id),
        tenant=str(run.tenant_id),
        agent_name=contract.agent.name,
        agent_version=contract.agent.version,
        prompt_version=contract.agent.prompt_version,
        model=contract.agent.model,
        instructions=contract.agent.instructions,
        task_input=tools_only_input(run, contract) if run.narrowed else task_input(contract),
        sandboxed=not run.narrowed,
        tools=declarations(contract),
        max_turns=contract.limits.turns,
        max_output_tokens=contract.limits.max_output_tokens or None,
        transcript=recording,
        endpoint=endpoint,
    )


def task_input(contract: Contract) -> str:
    """The first message: outcome, acceptance, and where things are."""
    lines = [f"Outcome: {contract.outcome}", "", "It is accepted when:"]
    lines += [f"- {each}" for each in contract.acceptance]
    lines += ["", "The source is in repo/, given files are in input/ (read-only)."]
    lines.append("Put what you want to hand over besides the changed source into output/.")
    lines += network_words(contract)
    if contract.verification:
        lines.append(f"It will be verified with: {' '.join(contract.verification.command)}")
    return "\n".join(lines)


def tools_only_input(run: Run, contract: Contract) -> str:
    """The same where the agent has no sandbox; with what its forerunners did outside already."""
    lines = [f"Outcome: {contract.outcome}", "", "It would be accepted when:"]
    lines += [f"- {each}" for each in contract.acceptance]
    lines += [
        "",
        "An earlier run of this job failed, and you go on without a sandbox: nothing of its "
        "workspace is here. Your last answer is what you hand over.",
    ]
    done = [
        f"- {call.tool} at {call.target}: "
        + ("it happened" if call.state == CallState.DONE else "it may have happened")
        for earlier in forerunners(run)
        for call in outward_acts(earlier)
    ]
    if done:
        lines += ["", "Done outside already, and not to be repeated:", *done]
    return "\n".join(lines)


def network_words(contract: Contract) -> list[str]:
    """What the agent may reach. Nothing is said where it is nothing, as the instructions say so."""
    if contract.network.mode == "off":
        return []
    lines = ["", "The sandbox reaches these hosts, through the proxy in http_proxy, and no others:"]
    for rule in contract.network.allow:
        narrow = f" {', '.join(rule.methods) or 'plain HTTP'}" if rule.methods or rule.path else ""
        lines.append(f"- {rule.host}:{rule.port}{rule.path}{narrow}, for: {rule.purpose}")
    if not contract.network.allow:
        lines = ["", "The sandbox reaches no host yet."]
    if contract.network.mode == "request":
        lines.append(f"Ask for another one with the tool {REQUEST_NETWORK} if you need it.")
    return lines


def declarations(contract: Contract) -> tuple[ToolDeclaration, ...]:
    """The tools the contract names, as the agent's side wants them."""
    tools = [
        ToolDeclaration(name=name, kind=BUILTIN_TOOLS[name], description="")
        for name in contract.tools.builtin
    ]
    if contract.tools.ask_person:
        tools.append(
            ToolDeclaration(
                name=ASK_PERSON,
                kind="question",
                description="Ask a person of the team one question and wait for the answer.",
                parameters=QUESTION_SCHEMA,
            )
        )
    if contract.network.mode == "request":
        tools.append(ToolDeclaration(name=REQUEST_NETWORK, kind="network", description=""))
    tools += [
        ToolDeclaration(
            name=tool.name,
            kind=tool.kind,
            description=tool.description,
            parameters=tool.parameters,
            outward=True,
        )
        for tool in contract.tools.brokered
    ]
    return tuple(tools)


def transcript_label(recording: bytes | None) -> str:
    """What pages show for a run that plays a recording; empty for a real model."""
    return transcript.load(recording).label if recording is not None else ""
