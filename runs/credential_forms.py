"""The form of a source of secrets: what all kinds share, and what one kind needs beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any, NamedTuple

from django import forms
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from runs.credentials.changes import Terms
from runs.credentials.scope import ALL
from runs.credentials.sources import ConfigWrong


class Setting(NamedTuple):
    """One setting of a kind of source."""

    name: str
    label: str
    help: str = ""
    required: bool = True
    initial: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    """Where there are no other values: each with its words, the usual one first."""
    suggestions: tuple[str, ...] = ()
    """Values that are likely; another one may be written."""


_FIELDS = ("password", "token", "secret", "key")
_ADDRESS = Setting("address", "Address", "Such as https://vault.example.com:8200.")
_NAMESPACE = Setting("namespace", "Namespace", "Empty where there are none.", required=False)

SETTINGS: Mapping[str, tuple[Setting, ...]] = {
    "static": (
        Setting("username", "User name", "For services that want one with it.", required=False),
    ),
    "github_app": (
        Setting("app", "App", "The App’s id or client id."),
        Setting("installation", "Installation", "Its number, in the address of its page."),
        Setting("repositories", "Repositories", "owner/name, separated by blanks, or *."),
        Setting(
            "api",
            "API",
            "That of github.com, or one’s own, such as https://github.example.com/api/v3.",
            required=False,
            initial="https://api.github.com",
            suggestions=("https://api.github.com",),
        ),
    ),
    "oauth": (
        Setting("token_url", "Token address"),
        Setting("revocation_url", "Revocation address", "RFC 7009.", required=False),
        Setting("client", "Client id"),
        Setting(
            "client_auth",
            "How the client says who it is",
            required=False,
            initial="basic",
            choices=(("basic", "In a header (basic)"), ("post", "In the form (post)")),
        ),
    ),
    "vault_kv": (
        _ADDRESS,
        Setting("mount", "Mount", "Of a KV engine, version 2."),
        Setting("path", "Path"),
        Setting("field", "Field", "", initial="password", suggestions=_FIELDS),
        Setting("username_field", "Field of the user name", "", required=False),
        _NAMESPACE,
    ),
    "vault_dynamic": (
        _ADDRESS,
        Setting("mount", "Mount", "Of the engine that makes the secrets."),
        Setting("role", "Role"),
        Setting("field", "Field", "", required=False, initial="password", suggestions=_FIELDS),
        Setting("username_field", "Field of the user name", "", required=False, initial="username"),
        _NAMESPACE,
    ),
}

SECRETS = {
    "static": ("The secret", "It is sealed at once and never shown again."),
    "github_app": ("Private key", "The PEM file of the App. It is sealed and never shown again."),
    "oauth": ("Client secret", "It is sealed at once and never shown again."),
    "vault_kv": ("Token", "One that may read this path only. Sealed, never shown again."),
    "vault_dynamic": (
        "Token",
        "One that may read this role and revoke leases. Sealed, never shown again.",
    ),
}

ACTIONS = {
    "static": "In words, one a line, such as “open issues”. Reviewers read them.",
    "github_app": "Permissions, one a line, such as contents:write or issues:read.",
    "oauth": "Scopes, one a line.",
    "vault_kv": "In words, one a line, such as “read the catalogue”. Reviewers read them.",
    "vault_dynamic": "In words, one a line, such as “read orders”. Reviewers read them.",
}


# Where the secrets of a kind are usually sent, to begin with.
AUDIENCES = {"github_app": "github.com\napi.github.com"}


class SecretArea(forms.Textarea):
    """A field that never shows what was typed into it, not even beside another field's error."""

    def format_value(self, value: Any) -> str:
        return ""


class SuggestingInput(forms.TextInput):
    """A line of text with likely values, of which none has to be taken."""

    def __init__(self, suggestions: Sequence[str], attrs: dict[str, Any] | None = None) -> None:
        self.suggestions = suggestions
        super().__init__(attrs)

    def render(
        self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None
    ) -> SafeString:
        named = f"likely-{name}"
        line = super().render(name, value, {**(attrs or {}), "list": named}, renderer)
        options = format_html_join(
            "", '<option value="{}">', ((each,) for each in self.suggestions)
        )
        return format_html('{}<datalist id="{}">{}</datalist>', line, named, options)


class SourceForm(forms.Form):
    """A source that is new, or other terms for one that is there."""

    name = forms.SlugField(
        label="Name", max_length=64, help_text="Contracts call it by this name. It never changes."
    )
    secret = forms.CharField(max_length=20_000, strip=False, widget=SecretArea(attrs={"rows": 3}))
    actions = forms.CharField(
        label="What it may do", max_length=4_000, widget=forms.Textarea(attrs={"rows": 3})
    )
    audience = forms.CharField(
        label="Where it may be sent",
        max_length=4_000,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="Hosts, one a line: host or host:port.",
    )
    consumers = forms.MultipleChoiceField(
        label="Contracts that may use it", widget=forms.CheckboxSelectMultiple
    )
    minutes = forms.IntegerField(
        label="Minutes one secret lives at most",
        min_value=1,
        max_value=24 * 60,
        initial=15,
        help_text="It is always shorter than what the run has left.",
    )
    expires_on = forms.DateField(
        label="Last day of the source", widget=forms.DateInput(attrs={"type": "date"})
    )
    owner = forms.CharField(
        label="Owner", max_length=200, help_text="Who answers for it, a person or a team."
    )
    reason = forms.CharField(
        label="Why",
        max_length=2_000,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="Whoever decides reads this, and the record keeps it.",
    )

    def __init__(
        self,
        kind: str,
        contracts: Sequence[str],
        *args: Any,
        now: Mapping[str, Any] | None = None,
        owners: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        """`now` are the terms in force, for a change; `owners` are likely ones."""
        self.kind = kind
        super().__init__(*args, **{**kwargs, "initial": _initial(kind, now)})
        choices = [(ALL, "Every contract"), *((each, each) for each in contracts)]
        self.fields["consumers"].choices = choices  # type: ignore[attr-defined]
        self.fields["actions"].help_text = ACTIONS[kind]
        label, help_text = SECRETS[kind]
        secret = self.fields["secret"]
        secret.label, secret.help_text = label, help_text
        secret.widget.attrs |= {"autocomplete": "off", "spellcheck": "false", "class": "code"}
        if now is not None:
            secret.required = False
            secret.help_text = "Empty keeps the one that is there."
            del self.fields["name"]
        for each in SETTINGS[kind]:
            self.fields[each.name] = _field(each, now)
        self.fields["owner"].widget = SuggestingInput(owners, {"maxlength": "200"})
        settings = [each.name for each in SETTINGS[kind]]
        self.order_fields(["name", *settings, "secret"])

    def terms(self) -> Terms:
        """The terms of a valid form."""
        data = self.cleaned_data
        end = datetime.combine(data["expires_on"], time.max, UTC).replace(microsecond=0)
        return Terms(
            kind=self.kind,
            config={each.name: data[each.name].strip() for each in SETTINGS[self.kind]},
            actions=_lines(data["actions"]),
            audience=tuple(each.lower() for each in _lines(data["audience"])),
            consumers=(ALL,) if ALL in data["consumers"] else tuple(data["consumers"]),
            owner=data["owner"],
            minutes=data["minutes"],
            expires_at=end.isoformat(),
        )

    def secret_given(self) -> str:
        """The secret of a valid form, with the line breaks a file has."""
        given: str = self.cleaned_data["secret"].replace("\r\n", "\n")
        return given if self.kind == "github_app" else given.strip()

    def take(self, wrong: ConfigWrong) -> None:
        """Show what a source found wrong at its field."""
        name = "expires_on" if wrong.name == "expires_at" else wrong.name
        self.add_error(name if name in self.fields else None, str(wrong))


def _field(setting: Setting, now: Mapping[str, Any] | None) -> forms.Field:
    shared: dict[str, Any] = {
        "label": setting.label,
        "help_text": setting.help,
        "required": setting.required,
    }
    if setting.choices:
        choices = list(setting.choices)
        # A source that leaves it out is not changed by being looked at.
        if now is not None and not now["config"].get(setting.name):
            choices.insert(0, ("", f"Not said, so: {choices[0][1].lower()}"))
        return forms.ChoiceField(choices=choices, **shared)
    if setting.suggestions:
        shared["widget"] = SuggestingInput(setting.suggestions)
    return forms.CharField(max_length=1_000, **shared)


def _lines(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.strip() for each in text.splitlines() if each.strip()))


def _initial(kind: str, now: Mapping[str, Any] | None) -> dict[str, Any]:
    if now is None:
        settings = {each.name: each.initial for each in SETTINGS[kind]}
        last = timezone.now().date() + timedelta(days=90)
        return {**settings, "expires_on": last, "audience": AUDIENCES.get(kind, "")}
    ends = now.get("expires_at")
    return {
        **now["config"],
        "actions": "\n".join(now["actions"]),
        "audience": "\n".join(now["audience"]),
        "consumers": now["consumers"],
        "minutes": now["minutes"],
        "owner": now["owner"],
        "expires_on": datetime.fromisoformat(ends).date() if ends else None,
    }
