"""Check a bundle of evidence: `python -m approvals.verify BUNDLE [--key KEY]...`.

Needs no database, no network and no framework: of this project it imports the canonical form, the
envelopes, the signatures of passkeys and the counting of votes, of others `rfc8785` and
`cryptography`. It reads once, a line at a time, and keeps nothing of what it has read, but what
each open packet demands and who approved it, and the same of superseded ones that had votes.

A bundle is one file of lines, each of them

    {"KIND":BODY,"hash":"HASH"}

with BODY as RFC 8785 JSON to the letter and HASH the SHA-256 of exactly these bytes. Kinds, in
the order in which they stand:

    bundle      whose evidence it is, and after which line of the audit log it begins
    audit       one line of the audit log; `previous` is the hash of the line before
    withheld    number, hash and `previous` of a line that this bundle does not show
    packet      behind the line that opened it: the page as it was shown; a test packet, which
                could do nothing, says so (`canary`)
    decision    behind the line that tells of it; where a rule demanded a passkey, with what the
                browser signed, the signature and the public key (`approvals.signatures`); with
                how long its page was open and what the page said was on screen (`attention`);
                one that is carried over names the superseded packet that it was given on
    check       behind the line that tells of them: the receipt of one check of a candidate
    receipt     behind the line that tells of the publication: an in-toto statement, signed
    checkpoint  behind the line it speaks of: where the chain was, signed
    run, event  a run with the end of its chain, and its events, chained in the same way
    end         what stands above, by number and SHA-256, signed

Signed is an envelope of DSSE with Ed25519. Whoever holds one public key of the portal can check
all of it: checkpoints are signed with every key in force, so that one that is trusted makes those
known that replace it.

Exit status: 0 everything holds, 1 something does not, 2 there is no bundle to check, 3 everything
holds but nobody said whose key it must be signed with.
"""

from __future__ import annotations

import argparse
import json
import sys

from approvals.bundle_form import lines_of
from approvals.signatures import Judged
from approvals.verifier import verified
from approvals.verify_report import NoBundle, shown, told, told_of
from portal.dsse import public_key


def _key(given: str) -> str:
    try:
        public_key(given)
    except ValueError:
        raise argparse.ArgumentTypeError(
            "it is no public key; copy the 64 characters that the Evidence page shows"
        ) from None
    return given.lower()


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns its exit status."""
    parser = argparse.ArgumentParser(
        "python -m approvals.verify",
        description="Check a bundle of evidence, without the portal.",
        epilog="Exit status: 0 holds, 1 does not, 2 no bundle, 3 holds, but whose key it is "
        "nobody said.",
    )
    parser.add_argument("bundle", help="the file; - reads standard input")
    parser.add_argument(
        "--key", action="append", default=[], type=_key, help="a public key that you trust"
    )
    parser.add_argument(
        "--decisions",
        action="store_true",
        help="tell of every decision first whether a passkey signed it, and which; with --json "
        "each as a line of its own",
    )
    parser.add_argument("--json", action="store_true", help="tell it as JSON")
    options = parser.parse_args(arguments)

    def tell(judged: Judged) -> None:
        if options.decisions:
            text = json.dumps(judged.to_data()) if options.json else told_of(judged)
            sys.stdout.write(f"{text}\n")

    try:
        if options.bundle == "-":
            report = verified(lines_of(sys.stdin.buffer), options.key, tell)
        else:
            with open(options.bundle, "rb") as file:
                report = verified(lines_of(file), options.key, tell)
    except (NoBundle, OSError) as error:
        sys.stderr.write(f"{shown(options.bundle)}: {error}\n")
        return 2
    sys.stdout.write(f"{json.dumps(report.to_data()) if options.json else told(report)}\n")
    return report.status


if __name__ == "__main__":
    sys.exit(main())
