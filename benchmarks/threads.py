"""What OpenMP's settings and pinning do to decoding, for one or more workers on one machine.

python -m benchmarks.threads [--workers 1] [--threads 2] [--rows 1] \
    [sleep:OMP_WAIT_POLICY=passive short:GOMP_SPINCOUNT=300 unset: pinned:PIN=1 ...]

All variants are loaded at once, stopped by SIGSTOP, and measured in turn. Each sample also notes
what other processes used of the CPUs meanwhile: quiet and disturbed samples are told apart.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from worker.settings.resolve import find_model

VARIANTS = ["sleep:OMP_WAIT_POLICY=passive", "short:GOMP_SPINCOUNT=300", "unset:"]
QUIET, DISTURBED = 0.12, 0.5
"""Cores that others used: below the first a sample is quiet, above the second disturbed."""
N_POSITIONS = 64


@dataclass
class Variant:
    """The workers of one setting, and their samples."""

    name: str
    processes: list["subprocess.Popen[str]"]
    samples: list[tuple[float, float]] = field(default_factory=list)
    """Tokens a second, and cores that others used."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of them."""
        for process in self.processes:
            process.send_signal(number)

    def measure(self, seconds: float) -> None:
        """Let them decode for a while."""
        self.signal(signal.SIGCONT)
        began = busy_s()
        for process in self.processes:
            print(seconds, file=process.stdin, flush=True)
        answers = [list(map(float, line_of(process).split())) for process in self.processes]
        others = busy_s() - began - sum(cpu for _, cpu in answers)
        self.signal(signal.SIGSTOP)
        self.samples.append((sum(rate for rate, _ in answers), others / seconds))


def line_of(process: "subprocess.Popen[str]") -> str:
    """Return the next line of a worker."""
    assert process.stdout is not None
    return process.stdout.readline()


def busy_s() -> float:
    """Return the seconds that all CPUs have worked."""
    with open("/proc/stat") as file:  # noqa: PTH123 - read in a loop
        ticks = list(map(int, file.readline().split()[1:]))
    return (sum(ticks[:3]) + sum(ticks[5:8])) / os.sysconf("SC_CLK_TCK")


def started(args: argparse.Namespace, text: str) -> Variant:
    """Start the workers of `NAME:KEY=VALUE,...`; PIN=1 pins each to its own CPU."""
    name, _, settings = text.partition(":")
    extra = dict(one.split("=", 1) for one in settings.split(",") if one)
    is_pinned = bool(extra.pop("PIN", ""))
    env = {key: value for key, value in os.environ.items() if "OMP_" not in key} | extra
    same = [f"--threads={args.threads}", f"--rows={args.rows}", f"--model={args.model}"]
    command = [sys.executable, "-m", "benchmarks.threads", *same]
    processes = [
        subprocess.Popen(
            [*command, f"--decode={cpu if is_pinned else -1}"],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for cpu in range(args.workers)
    ]
    found = Variant(name, processes)
    for process in processes:
        line_of(process)
    found.signal(signal.SIGSTOP)
    return found


def report(variants: Sequence[Variant]) -> None:
    """Print medians and their ratios to the first variant."""
    for kind, low, high in (("quiet", -99.0, QUIET), ("disturbed", DISTURBED, 99.0)):
        rates = {
            one.name: [rate for rate, others in one.samples if low <= others < high]
            for one in variants
        }
        base = rates[variants[0].name]
        for name, found in rates.items():
            if base and found:
                rate = statistics.median(found)
                ratio = rate / statistics.median(base)
                print(f"{kind:10} {name:10} n={len(found):3} {rate:7.1f} tokens/s  x{ratio:.2f}")


def decode(args: argparse.Namespace) -> None:
    """Decode for as many seconds as each line of standard input says."""
    if args.decode >= 0:
        os.sched_setaffinity(0, {args.decode})
    import llama_cpp.llama_cpp as lib

    from protocol.config.config import WorkerConfig
    from worker.llama.model import load

    config = WorkerConfig(
        model=args.model, n_slots=args.rows, n_ctx=512 * args.rows, n_threads=args.threads
    )
    context = load(config, lambda _fraction: None).context
    memory, batch = lib.llama_get_memory(context), lib.llama_batch_init(args.rows, 0, 1)
    batch.n_tokens = args.rows
    print("ready", flush=True)
    for line in sys.stdin:
        began, cpu, n = time.monotonic(), time.process_time(), 0
        while time.monotonic() - began < float(line):
            if n % N_POSITIONS == 0:
                lib.llama_memory_clear(memory, False)
            for row in range(args.rows):
                batch.token[row], batch.pos[row] = 100 + n % N_POSITIONS, n % N_POSITIONS
                batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, row, 1
            lib.llama_decode(context, batch)
            n += 1
        rate = n * args.rows / (time.monotonic() - began)
        print(rate, time.process_time() - cpu, flush=True)


def main() -> None:
    """Measure the variants in turn, or be one worker of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="*", default=VARIANTS)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--model", default=find_model(""))
    parser.add_argument("--decode", type=int, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.decode is not None:
        decode(args)
        return
    variants = [started(args, text) for text in args.variants]
    try:
        for turn in range(args.rounds):
            for one in variants if turn % 2 == 0 else reversed(variants):
                one.measure(args.seconds)
        report(variants)
    finally:
        for one in variants:
            one.signal(signal.SIGKILL)


if __name__ == "__main__":
    main()
