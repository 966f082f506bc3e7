"""`python -m worker`: how the supervisor starts one worker."""

import gc

from protocol.process.parent_death import die_with_parent


def main() -> None:
    """Import the worker without looking for garbage, of which imports leave none, and run it."""
    gc.disable()
    from worker.worker_command import worker

    gc.enable()
    worker(prog_name="llamapool worker")


if __name__ == "__main__":
    die_with_parent()
    main()
