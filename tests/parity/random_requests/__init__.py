"""Random requests to llama-server and to a pool, whose answers must be equal value by value.

`python -m tests.parity.random_requests --llama-server PATH --kind chat --count 200` prints what
differs, the most frequent first. Tools need a template that knows of them (`--template`). A seed
and a number alone decide what is sent, so that `--only N` repeats one.
"""
