"""Which faults the tests of the core would not see: one small fault at a time, and who notices.

    python -m tests.mutation [--area NAME | --module MODULE[:FUNCTION,…]] [--tests FILE]
        [--json FILE] [--again FILE]

A *mutant* is one function with one fault: a comparison turned, a condition negated, a statement or
a filter left out, a number off by one. Those tests run that pass through its line, the quickest
first, until one fails: then it is killed, once that test was seen to pass in the same place without
the fault. One that none notices *survives*, and is either killed by a new test, or listed in
`equivalent.toml` with the reason why nobody could notice.

Starting Python, Django and a database costs more than most tests, so it is done once: each mutant
lives in a fork of that process, with its own copy of the database, and ends with it. No mutant is
ever written to a file.
"""
