"""Words for packets, candidates and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from django import template

from approvals import reviewing
from approvals.models import Candidate, Packet
from approvals.policy import Rule
from approvals.states import KIND_WORDS

register = template.Library()


@register.filter
def check_words(name: str) -> str:
    """The name of a check as people read it."""
    return reviewing.check_words(name)


@register.filter
def kind_word(kind: str) -> str:
    """The kind of a packet within a sentence: `tool call`."""
    return KIND_WORDS[kind].lower()


@register.filter
def of_all(pair: tuple[int, int]) -> str:
    """`6 of 7`."""
    return f"{pair[0]} of {pair[1]}"


@register.filter
def bulk_arguments(packet: Packet) -> list[reviewing.Argument]:
    """The arguments of a packet that is looked at among others; long ones are cut and counted."""
    return [
        replace(each, text=f"{each.text[:200]}… ({len(each.text):,} characters in all)")
        if len(each.text) > 200
        else each
        for each in reviewing.arguments_of(packet.page["arguments"])
    ]


@register.filter
def lines_added(candidate: Candidate) -> int:
    return sum(each["added"] or 0 for each in candidate.changes)


@register.filter
def lines_removed(candidate: Candidate) -> int:
    return sum(each["removed"] or 0 for each in candidate.changes)


@register.filter
def get(rules: Mapping[str, Any], name: str) -> Any:
    """What belongs to the rule of that name, for instance the rule in another version."""
    return rules.get(name)


@register.filter
def missing_from(rules: Mapping[str, Rule], others: Sequence[Rule]) -> list[str]:
    """Names of rules that another version does not have any more."""
    return [name for name in rules if name not in {rule.id for rule in others}]
