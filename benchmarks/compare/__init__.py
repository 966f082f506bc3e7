"""Our pool against llama-server: the same loads on both in turn, as ratios.

python -m benchmarks.compare --llama-server PATH [--model FILE] [--workload NAME …] [--json FILE]
python -m benchmarks.compare --report FILE

Each workload of each round gets a fresh server, ours first, then llama-server's, and so on, so that
a machine that grows slower in the meantime is slow for both.
docs/running/performance.md has the method.
"""
