"""`python -m worker`: how the supervisor starts one worker."""

from protocol.process.imports import importing_command
from protocol.process.parent_death import die_with_parent


def main() -> None:
    """Import the worker and run it."""
    with importing_command():
        from worker.worker_command import worker
    worker(prog_name="llamapool worker")


if __name__ == "__main__":
    die_with_parent()
    main()
