"""Secrets that only the outer runtime uses, each asked for in one place and for one use.

    scope     what a credential may do, and what one scope has beyond another    (core)
    sources   where secrets come from, and how they are taken back               (core)
    grants    uses: asked for, approved, made, used, taken back                  (story)
    using     one use from beginning to end; what must be recognised             (story)
    changes   sources and their changes, approved by a second person             (story)

A secret is made when it is used, lives shorter than its run may, and is taken back when the use or
the run ends, however it ends: what a dead worker left, the sweep takes back, again and again until
the source confirms it. It is sealed at rest and never enters the sandbox.
"""

from __future__ import annotations

from runs.credentials.grants import CredentialRefused
from runs.credentials.sources import Secret
from runs.credentials.using import known, use

__all__ = ["CredentialRefused", "Secret", "known", "use"]
