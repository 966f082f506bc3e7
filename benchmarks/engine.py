"""Where the time of an engine step goes, with all slots decoding.

python -m benchmarks.engine [--slots 8] [--predict 128]
"""

import argparse
import os
import threading
from collections.abc import Sequence

from protocol.config import WorkerConfig
from protocol.messages import Message, Terminal
from protocol.sampling import SamplingParams
from worker.engine.engine import Engine, EngineConfig
from worker.engine.task import Stop, Submit, Task
from worker.llama.backend import LlamaBackend
from worker.resolve import find_model


def main() -> None:
    """Run one load and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=find_model(""))
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--predict", type=int, default=128)
    args = parser.parse_args()
    config = WorkerConfig(
        model=str(args.model),
        n_slots=args.slots,
        n_ctx=512 * args.slots,
        n_threads=len(os.sched_getaffinity(0)),
    )
    backend = LlamaBackend(config, lambda _fraction: None)
    left = threading.Semaphore(0)

    def emit(messages: Sequence[Message]) -> None:
        for message in messages:
            if isinstance(message, Terminal):
                left.release()

    engine = Engine(backend, EngineConfig(n_slots=args.slots, n_ctx=backend.card.n_ctx), emit)
    thread = threading.Thread(target=engine.run)
    thread.start()
    params = SamplingParams(n_predict=args.predict, ignore_eos=True)
    for i in range(args.slots):
        prompt = backend.tokenize(f"Story {i}: once", add_special=True, parse_special=True)
        engine.submit(Submit(Task(i, 0, prompt, params)))
    for _ in range(args.slots):
        left.acquire()
    stats = engine.heartbeat().stats
    engine.submit(Stop())
    thread.join()
    n_steps = stats.n_decode
    overhead_us = (stats.step_s - stats.decode_s - stats.sample_s) / n_steps * 1e6
    print(f"{stats.n_predicted / stats.step_s:.0f} tokens/s over {n_steps} steps")
    print(f"decode {stats.decode_s / stats.step_s:.2%}  sample {stats.sample_s / stats.step_s:.2%}")
    print(f"Python {overhead_us:.0f} us a step, {overhead_us / args.slots:.1f} us a slot and step")
    print(f"gap between decode calls {stats.gap_s / n_steps * 1e6:.0f} us, sampling included")


if __name__ == "__main__":
    main()
