"""Where the time of an engine step goes, with all slots decoding.

python -m benchmarks.engine [--slots 8] [--predict 128] [--temperature 0] [--threads 2]
"""

import argparse
import os
import select

from protocol.config.config import WorkerConfig
from protocol.wire.facts import Stats
from protocol.wire.messages import Envelope, TaskKey, Terminal
from protocol.wire.sampling import SamplingParams
from worker.engine.engine import Engine
from worker.engine.task import EngineTask, Submit
from worker.engine_thread import EngineThread, open_backend
from worker.host.process_environment import process_environment
from worker.link.outbound import OutboundQueue
from worker.settings.resolve import find_model


def main() -> None:
    """Run one load and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="", help="GGUF file; none is the embedded model")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--predict", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=0, help="0 is the cores at hand")
    args = parser.parse_args()
    config = WorkerConfig(
        model=str(find_model(args.model)),
        n_slots=args.slots,
        n_ctx=512 * args.slots,
        kv_unified=True,
        n_threads=args.threads or len(os.sched_getaffinity(0)),
    )
    os.environ.update(process_environment(config, os.environ))
    outbound = OutboundQueue()
    # One thread loads and computes: a second one would make OpenMP threads of its own.
    thread = EngineThread(config, outbound, open_backend)
    thread.start(lambda _fraction: None)
    while thread.engine is None:
        assert not thread.has_ended, thread.error
        wait(outbound)
    params = SamplingParams(
        n_predict=args.predict, ignore_eos=True, temperature=args.temperature, stream=True
    )
    stats = measure(thread, outbound, params)
    thread.stop()
    thread.join(10)
    report(stats, args.slots)


def measure(thread: EngineThread, outbound: OutboundQueue, params: SamplingParams) -> Stats:
    """Fill every slot once; return what was counted."""
    engine: Engine | None = thread.engine
    assert engine is not None and thread.backend is not None
    left = n_slots = len(engine.slots)
    for i in range(n_slots):
        prompt = thread.backend.tokenize(f"Story {i}: once", add_special=True, parse_special=True)
        engine.submit(Submit(EngineTask(TaskKey(i), prompt, params)))
    while left:
        wait(outbound)
        items = outbound.take()
        left -= sum(
            isinstance(item, Envelope) and isinstance(item.payload, Terminal) for item in items
        )
    return engine.heartbeat().stats


def wait(outbound: OutboundQueue) -> None:
    """Wait until the engine has said something."""
    select.select([outbound.fd], [], [])


def report(stats: Stats, n_slots: int) -> None:
    """Print the shares."""
    n_steps = stats.n_decode
    overhead_us = (stats.step_s - stats.decode_s - stats.sample_s) / n_steps * 1e6
    sample_us = stats.sample_s / n_steps * 1e6
    print(f"{stats.n_predicted / stats.step_s:.0f} tokens/s over {n_steps} steps")
    print(f"decode {stats.decode_s / stats.step_s:.2%}  sample {stats.sample_s / stats.step_s:.2%}")
    print(f"Python {overhead_us:.0f} us a step, {overhead_us / n_slots:.1f} us a slot and step")
    print(f"choosing {sample_us / n_slots:.1f} us a slot and step")
    print(f"gap between decode calls {stats.gap_s / n_steps * 1e6:.0f} us, choosing included")


if __name__ == "__main__":
    main()
