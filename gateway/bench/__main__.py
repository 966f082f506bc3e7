"""`python -m gateway.bench` is `llamapool bench`."""

from gateway.bench.cli import bench

if __name__ == "__main__":
    bench(prog_name="llamapool bench")
