"""Queue, packets, candidates and publications."""

from __future__ import annotations

import re
import secrets
import uuid
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from approvals import (
    attention,
    canary,
    carrying,
    confirm,
    deciding,
    delegation,
    editing,
    own,
    publishing,
    queries,
    reachable,
    reviewing,
    scopes,
    signing,
    undo,
    watching,
    withdraw,
)
from approvals import standing as standings
from approvals.access import (
    access_call,
    access_packet,
    access_publication,
    access_secret,
)
from approvals.candidate_views import files_context, review_context
from approvals.delegation_views import behalf_of
from approvals.forms import SettleForm
from approvals.models import Packet
from approvals.states import KIND_WORDS, PacketKind, PacketState, Verdict
from approvals.times import Times, said, valid_seconds
from portal.access import TenantRequest, tenant_view
from portal.asked import asked_number
from portal.canonical import canonical
from portal.errors import BadInput, NotFound, Refusal
from portal.roles import Permission
from runs import lifecycle, recovery
from runs.credentials import grants, sight
from runs.states import Unclear

_GET_OR_POST = require_http_methods(["GET", "HEAD", "POST"])
KINDS = (("", "Every kind"), *KIND_WORDS.items())


# --- the queue -------------------------------------------------------------------------------


@require_GET
@tenant_view(Permission.VIEW)
def queue(request: TenantRequest) -> HttpResponse:
    """Open packets, soonest expiry first; or those that were settled, newest first."""
    member, now = request.membership, timezone.now()
    answers = any(member.may(each) for each in (Permission.DECIDE, Permission.PUBLISH))
    # Nothing ever waits for a person whose roles answer nothing: they begin with everyone's.
    filters = queries.Filters.read(request.GET.dict(), usual="mine" if answers else "all")
    decided = filters.scope == "decided"
    # The list and the navigation show the same numbers, read once.
    counts = request.shell_counts = queries.shell_counts(member)
    # Few people have any of others, so few are asked about.
    handed = delegation.received(member, now) if counts["handed_over"] and not decided else []
    if decided:
        page = queries.decided_page(member, filters, asked_number(request, "before"))
    else:
        shown = (
            queries.waiting_for(member, handed)
            if filters.scope == "mine"
            else queries.open_packets(member.tenant)
        )
        page = queries.queue_page(shown, filters, request.GET.get("after", ""), member, handed)
    kept = {key: value for key, value in (("kind", filters.kind), ("q", filters.text)) if value}
    context = {
        "filters": filters,
        "answers": answers,
        "kinds": KINDS,
        "page": page,
        "groups": [] if decided else queries.grouped(page.rows, now),
        "first": not request.GET.get("after") and not request.GET.get("before"),
        "next_query": urlencode(
            {"show": filters.scope, **kept, ("before" if decided else "after"): page.next_cursor}
        ),
        "kept": urlencode(kept),
        "now": now.isoformat(),
        # Most people have none of these most of the time, and then are not asked about twice.
        # What is done stands under all that waits, so only where that ends.
        "today": queries.decided_by_me_today(member)
        if counts["today"] and filters.scope == "mine" and not page.next_cursor
        else [],
        "unreachable": reachable.warned(member.tenant) if member.may(Permission.MANAGE) else [],
        "handed": recovery.handed_to(member) if counts["handed"] and not decided else [],
    }
    return render(request, "approvals/queue.html", context)


@require_GET
@tenant_view(Permission.VIEW)
def queue_news(request: TenantRequest) -> HttpResponse:
    """What a queue page that stands still should know: new packets, and rows that were settled."""
    filters = queries.Filters.read(request.GET.dict())
    since = queries.moment_of(request.GET.get("since", "").replace(" ", "+"))
    if since is None:
        raise BadInput(reason="The page did not say when it was drawn. Reload it.")
    shown: list[uuid.UUID] = []
    for value in request.GET.getlist("row")[: queries.PAGE]:
        try:
            shown.append(uuid.UUID(value))
        except ValueError:
            raise BadInput(reason="The page named a row that is none. Reload it.") from None
    context = {
        "count": queries.newcomers(request.membership, filters, since),
        "reminded": queries.shell_counts(request.membership)["reminded"],
        "gone": queries.no_longer_open(request.tenant, shown),
        "news": queries.news_of_shown(request.membership, shown).items(),
        "here": urlencode(
            {
                k: v
                for k, v in (("show", filters.scope), ("kind", filters.kind), ("q", filters.text))
                if v
            }
        ),
    }
    answer = render(request, "approvals/_queue_news.html", context)
    if context["count"] and not shown and not filters.text:
        # On an empty page nothing can move under the pointer: draw it anew at once.
        answer["HX-Refresh"] = "true"
    return answer


@require_GET
@tenant_view(Permission.VIEW)
def mine(request: TenantRequest) -> HttpResponse:
    """A person's own decisions; for admins and auditors also what the tenant's come to."""
    member, answers = request.membership, own.own_answers(request.membership)
    sees_all = member.may(Permission.MANAGE) or member.may(Permission.AUDIT)
    context = {
        "answers": answers[: queries.PAGE],
        "streak": attention.streak_of((each.verdict, each.attention) for each in answers),
        "together": own.answers_together(request.tenant) if sees_all else None,
        "people": own.TOGETHER_PEOPLE,
        "days": own.TOGETHER_DAYS,
    }
    return render(request, "approvals/mine.html", context)


# --- packets ---------------------------------------------------------------------------------

TABS = {
    "diff": "Diff",
    "files": "Files",
    "receipts": "Receipts",
    "provenance": "Provenance",
    "discussion": "Discussion",
}


def _tabs_of(packet: Packet) -> list[str]:
    if packet.candidate_id is not None:
        return list(TABS)
    return ["provenance", "discussion"]


def _state_context(
    request: TenantRequest, packet: Packet, since: watching.Look | None
) -> dict[str, Any]:
    """What of a packet's page can change while somebody reads it, who saw it at `since` last."""
    standing = standings.standing_of(packet, request.membership)
    is_open = packet.state == PacketState.OPEN
    context: dict[str, Any] = {
        "packet": packet,
        "kind_word": KIND_WORDS[packet.kind],
        "is_open": is_open,
        "out_of_time": is_open and not packet.held_until and timezone.now() >= packet.expires_at,
        "standing": standing,
        "need": standings.need_sentence(packet, request.membership),
        "votes": standings.votes_of(packet),
        "places": standings.empty_places(packet),
        "unreachable": reachable.of_packet(packet) if is_open and not packet.held_until else "",
        "publication": queries.publication_of(packet),
        "withdrawn": queries.withdrawal_of(packet),
        "credential_uses": scopes.uses_of(packet),
        "test_words": canary.words(packet, packet.decisions.all(), request.user.pk)
        if packet.canary is not None
        else "",
        "own_attention": own.told_of_own(packet, request.user),
        "others_here": watching.others_here(packet, request.membership),
        "since": since,
        "news": watching.news_of(packet, request.membership, since) if since else None,
    }
    if not is_open or standing.answered:
        context["next_id"], context["left"] = queries.first_waiting(request.membership, packet)
        context["successor"] = reviewing.successor_of(packet)
    return context


def _panel_context(request: TenantRequest, packet: Packet, tab: str) -> dict[str, Any]:
    """What one tab shows."""
    found = packet.candidate
    if tab == "discussion":
        return {"discussion": queries.discussion_of(packet)}
    if found is None:
        return {}
    if tab == "diff":
        return review_context(request, found)
    if tab == "files":
        return files_context(found)
    if tab == "receipts":
        return {"receipts": reviewing.receipt_rows(queries.receipts_of(found))}
    return {}


def _packet_page(
    request: TenantRequest,
    packet: Packet,
    tab: str,
    *,
    refusal: Refusal | None = None,
    comment: str = "",
    everything: bool = False,
) -> HttpResponse:
    page = packet.page
    asks = packet.candidate_id is None
    events, total = queries.timeline_of(packet)
    earlier, following = queries.neighbours(packet, request.membership)
    scope = page.get("scope", [])
    context: dict[str, Any] = {
        **_state_context(request, packet, watching.looked(packet, request.membership)),
        "page": page,
        "emphasis": queries.emphasis_of(packet.kind, page["target"]),
        "tabs": [(name, TABS[name]) for name in _tabs_of(packet)],
        "tab": tab,
        "everything": everything,
        "arguments": reviewing.arguments_of(page["arguments"]) if asks else [],
        "arguments_size": reviewing.arguments_size(page["arguments"]) if asks else 0,
        "arguments_hidden": reviewing.arguments_hidden(page["arguments"]) if asks else 0,
        "scope": scope,
        "times": Times.of_gate(page["gate"]).words,
        "usable": said(valid_seconds(page["gate"], packet.kind)),
        "scope_words": reviewing.scope_sentence(scope, PacketKind(packet.kind)),
        "checks": reviewing.passed_of(page.get("receipts", {})),
        "whole": deciding.whole(packet),
        "excluded": queries.names_of(packet.excluded),
        "events": events,
        "event_total": total,
        "earlier": earlier,
        "following": following,
        "approve_words": reviewing.approve_words(packet),
        "may_withdraw": packet.state == PacketState.OPEN
        and packet.kind in withdraw.CAN_BE_WITHDRAWN
        and packet.requested_by_id == request.user.pk,
        "editable": not editing.why_not_editable(packet),
        "edits": reviewing.edits_of(page),
        "void_votes": carrying.void_votes(packet),
        "asks_first": reviewing.asks_first(packet),
        "typed": (typed := confirm.typed_word(packet)),
        "why_typed": confirm.why_typed(packet) if typed else "",
        "acknowledge": confirm.to_acknowledge(packet),
        "passkey": signing.readiness(
            packet, request.user, f"{request.scheme}://{request.get_host()}"
        ),
        "token": secrets.token_urlsafe(24),
        "view": attention.kept_view(request.POST.get("view", ""), packet, request.user),
        "behalf": behalf_of(request),
        "refusal": refusal,
        "comment": comment,
    }
    successor = context.get("successor")
    if refusal is not None and successor is not None:
        context["differences"] = reviewing.changes_between(packet, successor)
    for name in _tabs_of(packet) if everything else [tab]:
        context |= _panel_context(request, packet, name)
    status = refusal.status if refusal else 200
    return render(request, "approvals/packet.html", context, status=status)


@require_GET
@tenant_view(Permission.VIEW)
def packet(request: TenantRequest, public_id: uuid.UUID, tab: str = "") -> HttpResponse:
    found = access_packet(request.membership, public_id)
    tabs = _tabs_of(found)
    if tab and tab not in tabs:
        raise NotFound
    return _packet_page(request, found, tab or tabs[0])


@require_GET
@tenant_view(Permission.VIEW)
def packet_print(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """Every tab one after the other, as evidence on paper."""
    found = access_packet(request.membership, public_id)
    return _packet_page(request, found, _tabs_of(found)[0], everything=True)


@require_GET
@tenant_view(Permission.VIEW)
def packet_state(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """The parts that change, for a tab that looks again. The page under review stays as it is."""
    found = access_packet(request.membership, public_id)
    since = watching.look_of(request.GET.get("since", ""))
    if request.GET.get("seen"):
        watching.saw(found, request.membership)
    return render(request, "approvals/_packet_state.html", _state_context(request, found, since))


@require_GET
@tenant_view(Permission.VIEW)
def packet_page(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """What the digest covers, as the canonical bytes it was made of, to be checked offline."""
    found = access_packet(request.membership, public_id)
    response = HttpResponse(canonical(found.page), content_type="application/json")
    response["Content-Disposition"] = f'attachment; filename="packet-{found.number}.json"'
    return response


_VERDICTS = {
    "approve": Verdict.APPROVE,
    "deny": Verdict.DENY,
    "changes": Verdict.REQUEST_CHANGES,
}
_SAID = {
    Verdict.APPROVE: "Approved.",
    Verdict.DENY: "Denied. Nothing is sent.",
    Verdict.REQUEST_CHANGES: "Changes are requested. Your words go to the agent.",
}
_TONES = {
    Verdict.APPROVE: "done",
    Verdict.DENY: "denied",
    Verdict.REQUEST_CHANGES: "changes",
}


@require_POST
@tenant_view(Permission.VIEW)
def packet_decide(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """One person's answer. Who may give which one is asked inside, with the row locked."""
    verdict = _VERDICTS.get(request.POST.get("answer", ""))
    if verdict is None:
        access_packet(request.membership, public_id)  # for others there is nothing to fill in wrong
        raise BadInput(reason="The form did not say which answer was meant. Nothing was decided.")
    comment = request.POST.get("comment", "").replace("\r\n", "\n")
    choice = request.POST.get("choice", "").strip()
    words = f"{choice}\n\n{comment}".strip() if choice and verdict is Verdict.APPROVE else comment
    answer = deciding.Answer(
        verdict=verdict,
        seen=request.POST.get("seen", ""),
        comment=words,
        token=request.POST.get("token", "")[:64],
        # The page asks for it in two places, for those with script and those without.
        typed="".join(each.strip() for each in request.POST.getlist("typed")[:2]),
        passkey=request.POST.get("passkey", ""),
        view=request.POST.get("view", ""),
        claims=request.POST.get("claims", ""),
        behalf=behalf_of(request),
    )
    try:
        given = deciding.settle_packet(public_id, answer, member=request.membership)
    except NotFound:
        raise
    except Refusal as refusal:
        # The page again, with what is true now and with the words that were written.
        found = access_packet(request.membership, public_id)
        return _packet_page(request, found, _tabs_of(found)[0], refusal=refusal, comment=comment)
    settled = given.packet
    if settled.canary is not None and settled.state != PacketState.OPEN:
        said = canary.words(settled, settled.decisions.all(), request.user.pk)
        tone = "wait" if verdict is Verdict.APPROVE else "done"
    elif settled.held_until is not None:
        said, tone = "Approved. Until it takes effect it can be undone.", "wait"
    elif settled.state == PacketState.OPEN:
        said, tone = "Your answer counts. More are needed.", "wait"
    else:
        said, tone = _SAID[verdict], _TONES[verdict]
    messages.success(request, f"{said} {attention.words(given.attention)}".strip(), extra_tags=tone)
    return redirect("approvals:packet", tenant=request.tenant.slug, public_id=public_id)


@require_POST
@tenant_view(Permission.VIEW)
def packet_undo(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """Take an approval back before it takes effect. Who may is asked with the row locked."""
    access_packet(request.membership, public_id)
    said = request.POST.get("round", "")
    try:
        undo.undo_approval(
            public_id,
            member=request.membership,
            seen=int(said) if re.fullmatch(r"[0-9]{1,9}", said) else 0,
            reason=request.POST.get("reason", "").strip(),
        )
    except NotFound:
        raise
    except Refusal as refusal:
        found = access_packet(request.membership, public_id)
        return _packet_page(request, found, _tabs_of(found)[0], refusal=refusal)
    messages.success(request, "Undone. The packet is open again.", extra_tags="wait")
    return redirect("approvals:packet", tenant=request.tenant.slug, public_id=public_id)


@require_POST
@tenant_view(Permission.VIEW)
def packet_withdraw(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """Take back what one asked for. Whether it was this person is asked with the row locked."""
    access_packet(request.membership, public_id)
    reason = request.POST.get("reason", "").strip().replace("\r\n", "\n")
    try:
        withdraw.withdraw_packet(public_id, member=request.membership, reason=reason)
    except NotFound:
        raise
    except Refusal as refusal:
        found = access_packet(request.membership, public_id)
        return _packet_page(request, found, _tabs_of(found)[0], refusal=refusal)
    messages.success(request, "Withdrawn. Nobody has to decide it.", extra_tags="ended")
    return redirect("approvals:packet", tenant=request.tenant.slug, public_id=public_id)


# --- publications ----------------------------------------------------------------------------


@require_GET
@tenant_view(Permission.VIEW)
def publications(request: TenantRequest) -> HttpResponse:
    page = Paginator(queries.publication_list(request.tenant), 50).get_page(request.GET.get("page"))
    return render(request, "approvals/publications.html", {"page": page})


@require_GET
@tenant_view(Permission.VIEW)
def publication(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    found = access_publication(request.membership, public_id)
    context = {
        "publication": found,
        "run": found.run,
        "packet": found.packet,
        "votes": [each for each in standings.votes_of(found.packet) if not each.void],
        "form": SettleForm(),
    }
    return render(request, "approvals/publication.html", context)


@require_GET
@tenant_view(Permission.VIEW)
def publication_receipt(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """The signed statement, to be checked offline."""
    found = access_publication(request.membership, public_id)
    if found.statement is None:
        raise NotFound
    response = JsonResponse(found.statement, json_dumps_params={"indent": 2})
    response["Content-Disposition"] = (
        f'attachment; filename="receipt-run-{found.run.number}.dsse.json"'
    )
    return response


_SAY_WHAT_YOU_SAW = (
    "Say what you saw and where: the evidence keeps these words. Nothing was changed."
)
_LOOKED = {
    "done": ("It is there. The publication is settled as done; nothing was sent again.", "done"),
    "absent": (
        "Nothing of it is at the target. It is still called unknown until you settle it.",
        "wait",
    ),
    "partial": (
        "Only a part of it is at the target. It is still called unknown until you settle it.",
        "wait",
    ),
}


@require_POST
@tenant_view(Permission.PUBLISH)
def publication_settle(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """Look again, do it now, or give it up: the three ways out of an unknown outcome."""
    found = access_publication(request.membership, public_id)
    move = request.POST.get("move")
    if move == "look":
        words, tone = _LOOKED[publishing.reconcile(found.public_id, member=request.membership)]
        messages.info(request, words, extra_tags=tone)
    elif move == "again":
        publishing.try_again(found.public_id, member=request.membership)
        messages.success(request, "It is tried once more, with the same names.", extra_tags="wait")
    elif move == "give_up":
        form = SettleForm(request.POST)
        if not form.is_valid():
            raise BadInput(reason=_SAY_WHAT_YOU_SAW)
        publishing.give_up(
            found.public_id, member=request.membership, note=form.cleaned_data["note"]
        )
        messages.success(
            request, "It is settled as not done. The run has ended.", extra_tags="done"
        )
    else:
        raise BadInput(reason="The form did not say what to do. Nothing was changed.")
    return redirect("approvals:publication", tenant=request.tenant.slug, public_id=public_id)


@require_GET
@tenant_view(Permission.VIEW)
def unknown(request: TenantRequest) -> HttpResponse:
    """The desk of acts whose outcome nobody knows."""
    context = {
        "publications": queries.unknown_publications(request.tenant),
        "calls": queries.unknown_calls(request.tenant),
        "secrets": sight.unsettled(request.tenant, queries.CAP),
        "may_settle_secrets": any(request.membership.may(each) for each in grants.SETTLES),
        "form": SettleForm(),
    }
    return render(request, "approvals/unknown.html", context)


@require_POST
@tenant_view(Permission.PUBLISH)
def call_settle(request: TenantRequest, pk: int) -> HttpResponse:
    call = access_call(request.membership, pk)
    happened = request.POST.get("happened")
    if happened not in ("yes", "no", *Unclear):
        raise BadInput(reason="The form did not say whether it happened. Nothing was changed.")
    note = request.POST.get("note", "").strip()
    if not note:
        raise BadInput(reason=_SAY_WHAT_YOU_SAW)
    if happened in tuple(Unclear):
        found = Unclear(happened)
        lifecycle.note_unclear_call(call, found=found, note=note[:2000], member=request.membership)
        messages.warning(request, "It is noted. The outcome is still unknown.")
        return redirect("approvals:unknown", tenant=request.tenant.slug)
    lifecycle.settle_unknown_call(
        call, happened=happened == "yes", note=note[:2000], member=request.membership
    )
    messages.success(request, "It is settled. The run goes on.", extra_tags="done")
    return redirect("approvals:unknown", tenant=request.tenant.slug)


@require_POST
@tenant_view(Permission.VIEW)
def secret_settle(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """Say what became of a secret. Who may is asked inside, with the row locked."""
    grant = access_secret(request.membership, public_id)
    found = request.POST.get("found")
    if found not in ("yes", "no"):
        raise BadInput(reason="The form did not say what was found. Nothing was changed.")
    note = request.POST.get("note", "").strip()
    if not note:
        raise BadInput(reason=_SAY_WHAT_YOU_SAW)
    grants.settle_lost(grant, found=found == "yes", note=note[:2000], member=request.membership)
    messages.success(request, "It is settled.", extra_tags="done")
    return redirect("approvals:unknown", tenant=request.tenant.slug)
