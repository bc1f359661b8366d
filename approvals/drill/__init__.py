"""The drill of whole runs: hostile transcripts and the recovery of a run, on a throwaway tenant.

`attacks` and `recovery` are stories over a `Stage`: people, contracts, a repository and a service
of the drill's own, in whatever database the process has. `inside` is the process that has none but
a throwaway one; `outside` starts it and keeps what it reports.
"""
