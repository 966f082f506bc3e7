"""python -m benchmarks.gpu gather | pack | run | report | ask: see README.md beside this."""

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks.gpu.gather import gather
from benchmarks.gpu.kit import Kit, Unfinished, Unfit
from benchmarks.gpu.report import report
from benchmarks.gpu.stages import STAGES, machine, pack

EXIT_AGAIN = 75


def main() -> None:
    """Run the command; 0: done, 1: a stage has failed, 75: run it again, time was up."""
    given = _arguments()
    kit = Kit(
        given.kit.absolute(),
        given.work.absolute(),
        is_dry=given.dry_run,
        server=given.llama_server,
        deadline=time.monotonic() + given.seconds,
    )
    try:
        if given.what == "gather":
            gather(kit, given.python)
        elif given.what == "pack":
            pack(kit)
        elif given.what == "run":
            _run(kit, given.rest or list(STAGES))
        elif given.what == "ask":
            from benchmarks.gpu.child import ask_here

            what, how, model, server = given.rest
            found = ask_here(what, how, Path(model), Path(server), is_dry=kit.is_dry)
            print("\n" + json.dumps(found))
        else:
            print(report(kit))
    except Unfit as error:
        sys.exit(str(error))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    parser.add_argument("what", choices=("gather", "pack", "run", "report", "ask"))
    parser.add_argument("rest", nargs="*", help="stages of `run`; none is all")
    parser.add_argument("--kit", type=Path, default=Path("build/gpu/kit"))
    parser.add_argument("--work", type=Path, default=Path("build/gpu/work"))
    parser.add_argument("--python", default="3.12", help="version of the Python there")
    parser.add_argument("--seconds", type=float, default=530, help="after which `run` stops")
    parser.add_argument("--dry-run", action="store_true", help="on a CPU: does everything run?")
    parser.add_argument("--llama-server", type=Path, help="one that is there already")
    return parser.parse_intermixed_args()


def _run(kit: Kit, names: list[str]) -> None:
    unknown = [name for name in names if name not in STAGES]
    if unknown:
        raise Unfit(f"no stage is called {unknown[0]}: there are {', '.join(STAGES)}")
    failed = []
    print(machine(), flush=True)
    for name in names:
        began = time.monotonic()
        try:
            kit.once(f"stage-{name}", partial(STAGES[name], kit))
        except Unfinished:
            print(f"{name}: unfinished; run the same command again", flush=True)
            sys.exit(EXIT_AGAIN)
        except Unfit as error:
            failed.append(name)
            print(f"{name}: FAILED: {error}", flush=True)
            continue
        print(f"{name}: done ({time.monotonic() - began:.1f} s)", flush=True)
    if failed:
        raise Unfit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
