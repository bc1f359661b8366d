"""Forms of policies, groups, unknown outcomes, keeping, a tenant’s end, evidence to take home."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, cast
from urllib.parse import urlencode

from django import forms

from approvals.demands import HANDLE
from approvals.states import PacketKind
from portal.context import roles_in_words
from portal.models import Membership
from portal.visible import hides_in_name, spelled


class PolicyForm(forms.Form):
    """The text of a policy version."""

    text = forms.CharField(
        label="The policy",
        strip=False,
        widget=forms.Textarea(attrs={"rows": 30, "spellcheck": "false", "class": "code"}),
        error_messages={"required": "Write the rules. An empty policy would deny everything."},
    )

    def clean_text(self) -> str:
        # Browsers send text areas with CRLF; the stored text is what the author wrote.
        return str(self.cleaned_data["text"]).replace("\r\n", "\n")

    comment = forms.CharField(
        label="What changes, and why",
        required=False,
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="For whoever decides on it. It is kept with the version.",
    )

    def clean_comment(self) -> str:
        return str(self.cleaned_data["comment"]).replace("\r\n", "\n")


class ArgumentsForm(forms.Form):
    """The arguments of a call as somebody edits them, and the digest they were read on."""

    seen = forms.CharField(widget=forms.HiddenInput)
    text = forms.CharField(
        label="Arguments",
        strip=False,
        widget=forms.Textarea(attrs={"rows": 16, "spellcheck": "false", "class": "code code-fit"}),
        help_text="One JSON object that fits the tool. It is read as strictly as the agent’s own.",
        error_messages={"required": "Write one JSON object; {} for no arguments."},
    )

    def clean_text(self) -> str:
        # Browsers send text areas with CRLF. A line break inside an argument is written \\n.
        return str(self.cleaned_data["text"]).replace("\r\n", "\n")


USUAL_DAYS = 90


class TrialForm(forms.Form):
    """How far back a policy is tried on what was judged, and before when."""

    DAYS = (7, 30, 90, 365)

    days = forms.TypedChoiceField(
        label="Tried on",
        choices=[(each, f"the last {each} days") for each in DAYS],
        coerce=int,
        empty_value=None,
        required=False,
    )
    before = forms.DateTimeField(required=False, widget=forms.HiddenInput)

    def clean_days(self) -> int:
        return int(self.cleaned_data["days"] or USUAL_DAYS)


class SettleForm(forms.Form):
    """What a person found out about an act whose outcome was unknown."""

    note = forms.CharField(
        label="What you saw, and where",
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 2}),
        error_messages={"required": "Say what you saw: the evidence keeps these words."},
    )


_DAYS = "Days after a run’s end. 0 keeps for ever."


class TimesForm(forms.Form):
    """How long a tenant keeps each kind of bytes, in days; 0 keeps for ever."""

    snapshot_days = forms.IntegerField(
        label="Snapshots of workspaces", min_value=0, max_value=3650, help_text=_DAYS
    )
    payload_days = forms.IntegerField(
        label="Payloads of events", min_value=0, max_value=3650, help_text=_DAYS
    )
    blob_days = forms.IntegerField(
        label="Files of candidates and receipts", min_value=0, max_value=3650, help_text=_DAYS
    )


class CanariesForm(forms.Form):
    """How often a tenant wants test packets."""

    every_days = forms.TypedChoiceField(
        label="Test packets",
        choices=[
            (0, "none"),
            (7, "one a week at most"),
            (14, "one in two weeks at most"),
            (30, "one in a month at most"),
            (90, "one in three months at most"),
        ],
        coerce=int,
        help_text="When exactly is drawn by lot.",
    )


class DeleteForm(forms.Form):
    """The short name of a tenant that is to be deleted."""

    typed = forms.CharField(
        label="Type the tenant’s short name",
        max_length=40,
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
        error_messages={"required": "Type the short name. Nothing was deleted."},
    )


class HoldForm(forms.Form):
    """Which run nothing is removed of, and why."""

    number = forms.IntegerField(
        label="Run",
        min_value=1,
        max_value=10**9,
        help_text="Its number. Nothing of this run is removed while the hold stands.",
    )
    why = forms.CharField(
        label="Why",
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 2}),
        error_messages={"required": "Say why: whoever lifts it reads these words."},
    )


class GroupForm(forms.Form):
    """A group's name and who is in it."""

    name = forms.CharField(label="Name", max_length=120, help_text="As packets show it.")
    members = forms.TypedMultipleChoiceField(
        label="Members",
        coerce=int,
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="A group gives no permission: a member counts for it where their roles let them "
        "approve.",
    )

    def __init__(self, people: Sequence[Membership], *data: Any, **more: Any) -> None:
        super().__init__(*data, **more)
        choices = [(each.pk, f"{spelled(each.user.name)}, {_roles(each)}") for each in people]
        cast(forms.TypedMultipleChoiceField, self.fields["members"]).choices = choices

    def clean_name(self) -> str:
        """It stands beside decisions: it must be what it looks like."""
        name: str = self.cleaned_data["name"]
        if hides_in_name(name):
            raise forms.ValidationError(
                "This name holds characters that cannot be seen. Type it anew."
            )
        return name


def _roles(membership: Membership) -> str:
    words = roles_in_words(membership)
    return words[:1].lower() + words[1:]


class NewGroupForm(GroupForm):
    """A new group, with the name that rules will use for ever."""

    handle = forms.RegexField(
        rf"^{HANDLE}\Z",
        label="Short name in rules",
        max_length=40,
        help_text="Small letters, digits and hyphens, such as security: rules write "
        "group:security. It never changes.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
        error_messages={"invalid": "Use small letters, digits and hyphens, at most 40."},
    )
    field_order = ["name", "handle", "members"]


class BundleForm(forms.Form):
    """Which evidence: all of it, some days, or what concerns one packet or one run."""

    since = forms.DateField(
        label="From", required=False, widget=forms.DateInput(attrs={"type": "date"})
    )
    until = forms.DateField(
        label="To", required=False, widget=forms.DateInput(attrs={"type": "date"})
    )
    packet = forms.IntegerField(label="Packet", required=False, min_value=1, max_value=10**9)
    run = forms.IntegerField(label="Run", required=False, min_value=1, max_value=10**9)

    def clean(self) -> dict[str, Any]:
        given = {name: each for name, each in self.cleaned_data.items() if each is not None}
        days = {"since", "until"} & set(given)
        if len(given) - len(days) + bool(days) > 1:
            raise forms.ValidationError("Ask for days, for one packet or for one run.")
        if len(days) == 2 and given["since"] > given["until"]:
            raise forms.ValidationError("The first day is after the last one.")
        return given

    def question(self) -> dict[str, Any]:
        """What was asked, the days as moments: from the beginning of one to the end of another."""
        given = dict(self.cleaned_data)
        if "since" in given:
            given["since"] = _midnight(given["since"])
        if "until" in given:
            given["until"] = _midnight(given["until"] + timedelta(days=1))
        return given

    def query(self) -> str:
        """The same question as the part of an address."""
        return urlencode(self.cleaned_data)

    def suffix(self) -> str:
        """What a file's name says of the question."""
        return "".join(f"-{name}-{each}" for name, each in self.cleaned_data.items())


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


class HandOverForm(forms.Form):
    """To whom somebody hands over their right to decide, until when, and for which packets."""

    KINDS = (
        (PacketKind.CALL.value, "Tool calls"),
        (PacketKind.QUESTION.value, "Questions"),
        (PacketKind.EGRESS.value, "Network"),
        (PacketKind.RESUME.value, "Going on"),
        (PacketKind.PUBLICATION.value, "Publications"),
    )
    _DAY = forms.DateInput(attrs={"type": "date"})

    until = forms.DateField(
        label="I am away until",
        widget=_DAY,
        help_text="The last day, in UTC. You can end it sooner.",
    )
    taker = forms.TypedChoiceField(label="Who decides in my name", coerce=int)
    since = forms.DateField(label="From", required=False, widget=_DAY, help_text="Empty: now.")
    kinds = forms.MultipleChoiceField(
        label="Packets",
        choices=KINDS,
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="None chosen: all of them.",
    )
    tools = forms.CharField(
        label="Tools",
        required=False,
        max_length=1000,
        help_text="Names with commas between. Empty: all of them.",
    )

    def __init__(self, takers: Sequence[Membership], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = cast(forms.TypedChoiceField, self.fields["taker"])
        field.choices = [
            (each.pk, f"{spelled(each.user.name)}, {roles_in_words(each).lower()}")
            for each in takers
        ]

    def clean_tools(self) -> list[str]:
        given = self.cleaned_data["tools"]
        names = [each.strip() for each in given.split(",") if each.strip()]
        if given.strip() and not names:
            # Nothing named is everything, which nobody means who wrote something.
            raise forms.ValidationError("Name tools, with commas between, or leave this empty.")
        return names

    def begins_at(self, now: datetime) -> datetime:
        since = self.cleaned_data["since"]
        return max(_midnight(since), now) if since else now

    def ends_at(self) -> datetime:
        """When the last day is over."""
        return _midnight(self.cleaned_data["until"]) + timedelta(days=1)
