"""Check of what the gateway refuses at its start; it is asked, so that its rules stand once."""

from collections.abc import Iterator

from worker.doctor.finding import Finding, fail, ok
from worker.host.child import ChildOutcome

GATEWAY = "gateway"


def check_gateway(asked: ChildOutcome) -> Iterator[Finding]:
    """Judge what `gateway.checks` has said."""
    problems = asked.facts.get("problems")
    if problems is None:
        text = f"cannot be asked: {asked.last_line or 'no answer'}"
        yield fail(GATEWAY, text, "install llamapool again; if that does not help, report it")
        return
    for problem in problems:
        yield fail(GATEWAY, problem, "correct this: the gateway would not start")
    if not problems:
        yield ok(GATEWAY, "takes the configuration")
