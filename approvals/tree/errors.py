"""Why a directory is no candidate, or a tree is not written out."""

from __future__ import annotations

from portal.errors import Refusal


class TreeRefused(Refusal):
    """The directory cannot become a candidate, as a whole."""

    code = "approvals.tree_refused"
    status = 422
    text = "No candidate was made, because {reason}. {remedy}"


class MaterialiseRefused(Refusal):
    """A tree cannot be written to a directory without leaving it or losing something."""

    code = "approvals.materialise_refused"
    status = 422
    text = (
        "The tree was not written out, because “{path}” {reason}. "
        "Ask the agent to remove or rename it."
    )


class ObjectMissing(Refusal):
    """The repository does not hold what it was asked for."""

    code = "approvals.object_missing"
    status = 409
    text = (
        "The object {name} is not in the repository, or is no {kind}. "
        "The source or candidate store is incomplete; take the candidate again."
    )


class GitFailed(Refusal):
    """Git itself failed. This is ours to mend, not the agent's."""

    code = "approvals.git_failed"
    status = 500
    text = (
        "git {what} ended with {code}: {detail}. Nothing was changed. "
        "Try again; if it stays so, tell an admin."
    )
