"""What an address or a short form asks for: read as meant, or refused."""

from __future__ import annotations

from django.http import HttpRequest

from portal.errors import BadInput


def asked_number(request: HttpRequest, name: str, default: int = 0) -> int:
    """A number of the address; anything else is a wrong address, not a server's mistake."""
    value = request.GET.get(name)
    if not value:
        return default
    if not value.isdecimal() or len(value) > 12:
        raise BadInput(
            reason=f"“{value[:40]}” is not a number. Go back and use the page's own links."
        )
    return int(value)


def asked_to_approve(request: HttpRequest) -> bool:
    """Which of two buttons a form was sent with: approve or deny. Without one, BadInput."""
    answer = request.POST.get("answer")
    if answer not in ("approve", "deny"):
        raise BadInput(
            reason="The form did not say whether to approve or to deny. Nothing was changed."
        )
    return answer == "approve"
