"""Time until a pool is ready, and the CPU time of its processes while it is idle.

python -m benchmarks.start [--workers 2] [--idle 10]
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.processes import core_use, family, free_port, wait_until_ok


def main() -> None:
    """Start a pool, wait, look at its CPU time, end it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--idle", type=float, default=10.0)
    args = parser.parse_args()
    port = free_port()
    command = [
        *(sys.executable, "-m", "worker.cli", "serve", "-c", "4096"),
        *("--workers", str(args.workers), "--port", str(port)),
    ]
    start = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_until_ok(process, f"http://127.0.0.1:{port}/readyz")
        print(f"ready after {time.perf_counter() - start:.2f} s")
        time.sleep(2)
        before = {pid: core_use(pid) for pid in family(process.pid)}
        time.sleep(args.idle)
        for pid, used in before.items():
            name = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:60]
            share = core_use(pid).since(used).ran_s / args.idle
            print(f"idle {share:.2%} of a core: {name}")
    finally:
        process.terminate()
        process.wait(timeout=60)


if __name__ == "__main__":
    main()
