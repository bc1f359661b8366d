"""The forms of signing in, of one's own settings and of a tenant's people."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from django import forms

from portal.context import ROLE_WORDS
from portal.models import User
from portal.visible import hides_in_name

# Django's own class takes no type argument when the program runs.
if TYPE_CHECKING:
    UserForm = forms.ModelForm[User]
else:
    UserForm = forms.ModelForm


class SignInForm(forms.Form):
    email = forms.EmailField(
        label="E-mail",
        widget=forms.EmailInput(attrs={"autocomplete": "username", "autofocus": True}),
    )
    password = forms.CharField(
        label="Password",
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
    )


class SettingsForm(UserForm):
    theme = forms.ChoiceField(
        label="Light or dark",
        required=False,
        choices=[("", "As this device has it"), ("light", "Light"), ("dark", "Dark")],
        widget=forms.RadioSelect,
    )
    single_keys = forms.BooleanField(
        label="Single keys work (j, k, o, a, r, d, …)",
        required=False,
    )

    class Meta:
        model = User
        fields: ClassVar[list[str]] = ["theme", "single_keys"]


class RolesForm(forms.Form):
    roles = forms.MultipleChoiceField(
        label="Roles",
        choices=[(role, words[:1].upper() + words[1:]) for role, words in ROLE_WORDS.items()],
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Choose at least one role, or remove the person instead."},
    )


class NewMemberForm(RolesForm):
    name = forms.CharField(label="Name", max_length=120)
    email = forms.EmailField(
        label="E-mail", widget=forms.EmailInput(attrs={"placeholder": "name@team.example"})
    )
    field_order = ["name", "email", "roles"]

    def clean_name(self) -> str:
        """A name stands beside decisions: it must be what it looks like."""
        name: str = self.cleaned_data["name"]
        if hides_in_name(name):
            raise forms.ValidationError(
                "This name holds characters that cannot be seen. Type it anew."
            )
        return name
