"""Faults on purpose, for as long as you like, and a table of what was survived: `make assault`.

See ../README.md. One file per kind of fault; each has `attempt`, which commits one fault and says
what came of it, and LIMIT, the seconds after which that counts as a hang.
"""
