"""Random requests: a valid one of every endpoint, changed at a few places by a seed.

`seeds.py` holds the valid ones, `odd.py` the values, `mutate.py` changes, `judge.py` says what
is wrong with an answer. `python -m tests.hostile.mutants --seed N --minutes M` sends on and on.
"""
