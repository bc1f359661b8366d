"""The page on which several packets are decided at once."""

from __future__ import annotations

import re
import secrets
import uuid

from django.http import HttpResponse, QueryDict
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from approvals import bulk
from approvals.bulk import LIMIT, Wanted
from approvals.deciding import COMMENT_LIMIT
from approvals.states import Verdict
from portal.access import TenantRequest, tenant_view
from portal.errors import BadInput
from portal.roles import Permission
from portal.visible import says_something

_VERDICTS = {"approve": Verdict.APPROVE, "deny": Verdict.DENY}
_PAIR = re.compile(r"([0-9a-f-]{36}):([0-9a-f]{64})")


@require_http_methods(["GET", "HEAD", "POST"])
@tenant_view(Permission.VIEW)
def queue_bulk(request: TenantRequest) -> HttpResponse:
    """What was picked, as a table; or each one's outcome, once an answer was sent."""
    if request.method != "POST":
        return _table(request, _ids(request.GET))
    verdict = _VERDICTS.get(request.POST.get("answer", ""))
    if verdict is None:
        raise BadInput(reason="The form did not say which answer was meant. Nothing was decided.")
    wanted = _wanted(request.POST)
    if not wanted:
        raise BadInput(reason="No packet was named. Nothing was decided. Pick some in the queue.")
    comment = request.POST.get("comment", "").replace("\r\n", "\n")
    if verdict is Verdict.DENY and not says_something(comment):
        return _table(
            request,
            [each.packet for each in wanted],
            problem="Denying needs a reason; every agent that goes on is told it word for word.",
            comment=comment,
            status=422,
        )
    results = bulk.settle_all(
        wanted,
        verdict,
        comment=comment,
        token=request.POST.get("token", "")[:64],
        member=request.membership,
    )
    context = {
        "results": results,
        "decided": sum(not each.why for each in results),
        "word": {"approve": "approved", "deny": "denied"}[verdict.value],
    }
    return render(request, "approvals/bulk_done.html", context)


def _table(
    request: TenantRequest,
    ids: list[uuid.UUID],
    *,
    problem: str = "",
    comment: str = "",
    status: int = 200,
) -> HttpResponse:
    picked = bulk.picked_by(request.membership, ids)
    context = {
        "together": [each.packet for each in picked if not each.why],
        "alone": [each for each in picked if each.why],
        "token": secrets.token_urlsafe(24),
        "problem": problem,
        "comment": comment,
        "comment_limit": COMMENT_LIMIT,
        "limit": LIMIT,
    }
    return render(request, "approvals/bulk.html", context, status=status)


def _ids(sent: QueryDict) -> list[uuid.UUID]:
    """Raises `BadInput` for what is no packet's id."""
    try:
        return [uuid.UUID(each) for each in sent.getlist("pick")[: LIMIT + 1]]
    except ValueError:
        raise BadInput(reason="The page named a packet that is none. Reload the queue.") from None


def _wanted(sent: QueryDict) -> list[Wanted]:
    wanted = []
    for each in sent.getlist("packet")[: LIMIT + 1]:
        match = _PAIR.fullmatch(each)
        if match is None:
            raise BadInput(
                reason="A packet was named without its digest. Nothing was decided. Pick them anew."
            )
        try:
            wanted.append(Wanted(uuid.UUID(match[1]), match[2]))
        except ValueError:
            raise BadInput(reason="The page named a packet that is none. Reload it.") from None
    return wanted
