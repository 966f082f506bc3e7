"""`python -m worker`: how the supervisor starts one worker."""

from protocol.process.parent_death import die_with_parent
from worker.cli import worker

if __name__ == "__main__":
    die_with_parent()
    worker(prog_name="llamapool worker")
