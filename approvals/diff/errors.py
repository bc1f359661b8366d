"""Why a diff, or a part of one, is not shown."""

from __future__ import annotations

from portal.errors import Refusal


class DiffBroken(Refusal):
    """The patch and the list of changes do not describe the same thing."""

    code = "approvals.diff_broken"
    status = 500
    text = (
        "The patch does not match the list of changes ({reason}), so it is not shown. "
        "Nothing can be approved on it; take the candidate again."
    )


class NoSuchLines(Refusal):
    """A file, hunk or line that this diff does not have."""

    code = "approvals.no_such_lines"
    status = 404
    text = "This diff has no such lines. Open the candidate again from its page."
