"""The forms of asking for a run and of writing a contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms

from portal.models import User
from portal.visible import spelled
from runs.egress.asking import (
    LONGEST_PATH,
    LONGEST_WORDS,
    MOST_MINUTES,
    Ask,
    AskRefused,
    read_ask,
)
from runs.egress.rules import METHODS, READING
from runs.models import ContractVersion

# Larger than any contract may be, so that the contract's own reader says what is wrong.
MAX_UPLOAD = 300 * 1024


class NewRunForm(forms.Form):
    """Which contract version in force to run, by its key."""

    version = forms.TypedChoiceField(
        label="Contract",
        coerce=int,
        widget=forms.RadioSelect,
        error_messages={
            "required": "Choose a contract.",
            "invalid_choice": "That version is not in force any more. Choose again.",
        },
    )

    def __init__(self, versions: Sequence[ContractVersion], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.versions = {version.pk: version for version in versions}
        self.fields["version"].choices = [  # type: ignore[attr-defined]
            (version.pk, f"{version.contract.name}, version {version.number}")
            for version in versions
        ]

    @property
    def chosen(self) -> ContractVersion:
        """The version that was chosen, once the form is valid."""
        return self.versions[self.cleaned_data["version"]]


class HandForm(forms.Form):
    """Whom a failure is handed to, and what they should know."""

    to = forms.TypedChoiceField(
        label="To",
        coerce=int,
        error_messages={
            "required": "Choose a person.",
            "invalid_choice": "That person does not belong to this tenant any more. Choose again.",
        },
    )
    note = forms.CharField(
        label="What they should know",
        required=False,
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 4}),
    )

    def __init__(self, people: Sequence[User], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.people = {person.pk: person for person in people}
        self.fields["to"].choices = [  # type: ignore[attr-defined]
            ("", "Choose a person"),
            *((person.pk, spelled(person.name)) for person in people),
        ]

    @property
    def chosen(self) -> User:
        """The person who was chosen, once the form is valid."""
        return self.people[self.cleaned_data["to"]]


class VersionForm(forms.Form):
    """The text of a contract version, typed or taken from a file."""

    text = forms.CharField(
        label="The contract",
        required=False,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 28, "spellcheck": "false", "class": "code"}),
    )
    file = forms.FileField(
        label="Or take it from a file",
        required=False,
        help_text="A .toml, .yaml or .yml file. It replaces the text above.",
        widget=forms.FileInput(attrs={"accept": ".toml,.yaml,.yml"}),
    )
    format = forms.ChoiceField(
        label="Written as",
        choices=[("toml", "TOML"), ("yaml", "YAML")],
        widget=forms.RadioSelect,
        initial="toml",
        required=False,
    )

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        upload = data.get("file")
        data["format"] = data.get("format") or "toml"
        if upload is not None:
            if upload.size > MAX_UPLOAD:
                self.add_error(
                    "file", "The file is larger than 256 KiB. Move long texts into the repository."
                )
                return data
            try:
                data["text"] = upload.read().decode("utf-8")
            except UnicodeDecodeError:
                self.add_error(
                    "file", "The file is not UTF-8 text. Save it as UTF-8 and send it again."
                )
                return data
            suffix = upload.name.rpartition(".")[2].lower()
            data["format"] = "yaml" if suffix in ("yaml", "yml") else "toml"
        # Browsers send text areas with CRLF; the stored text is what the author wrote.
        data["text"] = (data.get("text") or "").replace("\r\n", "\n")
        if not data["text"].strip() and "file" not in self.errors:
            self.add_error("text", "Write the contract here, or choose a file.")
        return data


class AskForm(forms.Form):
    """One destination that a run was refused, as a rule to ask for."""

    SPEAKS = (
        ("tls", "TLS (https), which must name the host"),
        ("read", f"Plain HTTP, for reading ({', '.join(READING)})"),
        ("write", f"Plain HTTP, every method ({', '.join(METHODS)})"),
    )

    host = forms.CharField(label="Host", max_length=253)
    port = forms.IntegerField(label="Port", min_value=1, max_value=65_535)
    speaks = forms.ChoiceField(
        label="What speaks there", choices=SPEAKS, widget=forms.RadioSelect, initial="tls"
    )
    path = forms.CharField(
        label="Folder or file",
        max_length=LONGEST_PATH,
        required=False,
        help_text="For plain HTTP only, such as /simple. Empty means all of the host.",
    )
    minutes = forms.IntegerField(label="Minutes", min_value=1, max_value=MOST_MINUTES, initial=15)
    purpose = forms.CharField(
        label="What it is needed for",
        max_length=LONGEST_WORDS,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="Whoever decides reads this, and the record keeps it.",
    )
    expected_response = forms.CharField(
        label="What it is expected to answer",
        max_length=LONGEST_WORDS,
        widget=forms.Textarea(attrs={"rows": 2}),
    )

    @staticmethod
    def guess(port: str) -> str:
        """What most likely speaks at a port."""
        return "read" if port == "80" else "tls"

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        methods = {"read": READING, "write": METHODS}.get(data.get("speaks", ""), ())
        if self.errors:
            return data
        if data["path"] and not methods:
            self.add_error("path", "Inside TLS nobody sees it. Leave it empty.")
            return data
        try:
            self._asked = read_ask({**data, "methods": methods})
        except AskRefused as refused:
            self.add_error(refused.field, str(refused))
        return data

    def asked(self) -> Ask:
        """The rule of a valid form."""
        return self._asked
