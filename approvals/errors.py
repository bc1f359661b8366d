"""The refusals of this app."""

from __future__ import annotations

from portal.errors import Refusal


class PacketChanged(Refusal):
    code = "approvals.packet_changed"
    text = (
        "The packet you read ({seen:.8}) is not the one stored now ({stored:.8}). "
        "Nothing was decided. Read what it says now, and decide again."
    )


class PacketDamaged(Refusal):
    code = "approvals.packet_damaged"
    text = (
        "Packet {number} no longer matches its own digest, so its content changed after it "
        "was sealed. "
        "Nothing was decided and nothing will be done with it. Deny it and look at the audit log."
    )


class PacketWithoutShape(PacketDamaged):
    code = "approvals.packet_without_shape"
    text = (
        "Packet {number} does not say in which form it was sealed, so nobody can say what its "
        "digest covers. Nothing was decided. Deny it; the agent can ask again."
    )


class PacketOfOtherShape(PacketDamaged):
    code = "approvals.packet_of_other_shape"
    text = (
        "Packet {number} was sealed in a form that this version of the portal does not know, so "
        "its page may not say what it seems to. Nothing was decided. Deny it; the agent can ask "
        "again."
    )


class AlreadySettled(Refusal):
    code = "approvals.already_settled"
    text = "Packet {number} is already {state}{by}. Nothing more was decided."


class NotYours(Refusal):
    code = "approvals.not_yours"
    status = 403
    text = (
        "Packet {number} was asked for by {by}, and nobody else withdraws it. If you may decide, "
        "deny it."
    )


class PacketHeld(Refusal):
    code = "approvals.packet_held"
    text = (
        "Packet {number} is approved and takes effect at {at}. Undo the approval first, then "
        "decide anew. Nothing was decided."
    )


class NothingHeld(Refusal):
    code = "approvals.nothing_held"
    text = (
        "There is nothing to undo: packet {number} is {state}. What was approved and has begun is "
        "stopped on the page of its run."
    )


class TooFewNow(Refusal):
    code = "approvals.too_few_now"
    text = (
        "Of those who approved packet {number} too few may approve it now. Their votes are void, "
        "and nothing was done."
    )


class AlreadyDecided(Refusal):
    code = "approvals.already_decided"
    text = (
        "You already answered packet {number} ({verdict}). A person counts once; your first "
        "answer stands."
    )


class PacketExpired(Refusal):
    code = "approvals.packet_expired"
    text = (
        "The time to decide packet {number} ran out at {at}. It was not approved, and nothing was "
        "done."
    )


class OwnRequest(Refusal):
    code = "approvals.own_request"
    status = 403
    text = (
        "You asked for this, edited it, own the agent or wrote the rule, so somebody else must "
        "decide packet {number} (separation of duties)."
    )


class MachineMayNotDecide(Refusal):
    code = "approvals.machine_may_not_decide"
    status = 403
    text = "A machine account can ask, and can never decide. Sign in as a person."


class NeedsDigest(Refusal):
    code = "approvals.needs_digest"
    status = 400
    text = (
        "The decision does not say which digest it was made on. Nothing was decided. Open the "
        "packet and decide there."
    )


class NeedsWords(Refusal):
    code = "approvals.needs_words"
    status = 422
    text = (
        "Say why: the audit log gets these words, and the agent if its run goes on. "
        "Nothing was decided."
    )


class NeedsTyped(Refusal):
    code = "approvals.needs_typed"
    status = 422
    text = "{why} Type “{word}” to approve it all the same. Nothing was decided."


class NeedsPasskey(Refusal):
    code = "approvals.needs_passkey"
    status = 422
    text = (
        "Approving this takes your passkey, which only the browser can ask for: with JavaScript, "
        "and with a passkey on your account (Settings, Passkeys). Nothing was decided."
    )


class VoteNotSigned(Refusal):
    code = "approvals.vote_not_signed"
    text = (
        "An approval of packet {number} is stored that no passkey signed, although its rule "
        "demands that: {reason}. Nothing was decided. Deny it, and look at the evidence."
    )


class VoteNotCarried(Refusal):
    code = "approvals.vote_not_carried"
    text = (
        "An approval of packet {number} is stored that was given on another page and does not "
        "hold for this one: {reason}. Nothing was decided. Deny it, and look at the evidence."
    )


class WordsTooLong(Refusal):
    code = "approvals.words_too_long"
    status = 422
    text = (
        "The comment has {length} characters; {limit} are possible. Nothing was decided. Shorten "
        "it, or attach the rest elsewhere."
    )


class PolicyNowDenies(Refusal):
    code = "approvals.policy_now_denies"
    text = (
        "Since the packet was opened the policy changed (version {version}) and now denies this: "
        "{reason}. Nothing was decided; deny the packet or change the policy."
    )


class ApprovalBlocked(Refusal):
    code = "approvals.approval_blocked"
    text = "Packet {number} cannot be approved: {reason}. Request changes or deny it."


class NotEditable(Refusal):
    code = "approvals.not_editable"
    status = 400
    text = "{reason} Nothing was changed."


class NothingEdited(Refusal):
    code = "approvals.nothing_edited"
    status = 422
    text = "These are the arguments of packet {number} already. Change something, or go back."


class EditDenied(Refusal):
    code = "approvals.edit_denied"
    status = 422
    text = (
        "Policy (version {version}) denies the call with these arguments: {reason} Nothing was "
        "changed. Write others, or request changes."
    )


class CountsForNothing(Refusal):
    code = "approvals.counts_for_nothing"
    status = 403
    text = (
        "Packet {number} needs people {wanted}, and you are none of them, so your approval would "
        "count for nothing. Nothing was decided. You may hold it back, or leave it to them."
    )


class RolesChanged(Refusal):
    code = "approvals.roles_changed"
    text = (
        "Roles changed while packet {number} was being answered. Nothing was decided. Reload, and "
        "decide again."
    )


class RunOver(Refusal):
    code = "approvals.run_over"
    text = "Run {number} is {state}, so packet {packet} is cancelled. Nothing was decided."


class PolicyRefused(Refusal):
    code = "approvals.policy_refused"
    status = 422
    text = "The policy was not saved: {problems}"


class NotUnknown(Refusal):
    code = "approvals.not_unknown"
    text = "The outcome of this publication is not unknown any more ({state}). Reload the page."


class LookFailed(Refusal):
    code = "approvals.look_failed"
    status = 502
    text = (
        "The target could not be asked what became of it: {reason} Nothing was changed. Try again."
    )


class HeldAlready(Refusal):
    code = "approvals.held_already"
    text = "Run {number} is under hold already. Nothing was changed."


class DeletedAlready(Refusal):
    code = "approvals.deleted_already"
    text = "{name} is deleted already. Nothing was changed."


class NameNotTyped(Refusal):
    code = "approvals.name_not_typed"
    status = 422
    text = "That is not the short name of {name}. Type “{slug}” to delete it. Nothing was deleted."
