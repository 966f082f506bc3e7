"""A finished run as text and as a JSON document."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from gateway.bench.client.transcript import Role, Transcript
from gateway.bench.drive import BenchRun
from gateway.bench.summary import Slo, as_dict, summarize
from gateway.bench.table import table

FORMAT = 1
"""Version of the JSON document."""


def text(run: BenchRun, slo: Slo) -> str:
    """Return the report: the load, the background streams, the load generator itself."""
    found = summarize(_of(run, Role.LOAD), slo)
    parts = [table(found, slo)]
    if background := _of(run, Role.BACKGROUND):
        parts += ["\nbackground", table(summarize(background), Slo())]
    parts.append(_client(run, found.duration_s))
    if failed := [transcript for transcript in run.transcripts if transcript.message]:
        parts.append(f"first error      {failed[0].message}")
    if run.is_cut_short:
        parts.append("cut short: the figures are of what had ended")
    return "\n".join(parts)


def _client(run: BenchRun, duration_s: float) -> str:
    """Return the CPU time of the load generator and its largest delay."""
    share = run.client_cpu_s / duration_s if duration_s else 0.0
    each_us = run.client_cpu_s / run.n_pieces * 1e6 if run.n_pieces else 0.0
    words = f"{share:.1%} of a core"
    if each_us:
        words += f", {each_us:.0f} us an event"
    if run.late_s:
        words += f", at most {run.late_s * 1e3:.1f} ms late"
    return f"\n{'client':<16}{words}"


def document(
    run: BenchRun, slo: Slo, settings: Mapping[str, Any], *, with_requests: bool
) -> dict[str, Any]:
    """Return the JSON document of a run."""
    found: dict[str, Any] = {
        "format": FORMAT,
        "settings": dict(settings),
        "load": as_dict(summarize(_of(run, Role.LOAD), slo)),
        "client": {
            "cpu_s": run.client_cpu_s,
            "events": run.n_pieces,
            "late_s": run.late_s,
            "cut_short": run.is_cut_short,
        },
    }
    if background := _of(run, Role.BACKGROUND):
        found["background"] = as_dict(summarize(background))
    if with_requests:
        found["requests"] = [_request(transcript) for transcript in run.transcripts]
    return found


def _request(transcript: Transcript) -> dict[str, Any]:
    return {
        "role": transcript.role,
        "conversation": transcript.conversation,
        "turn": transcript.turn,
        "start_s": transcript.start_s,
        "end_s": transcript.end_s,
        "arrivals_s": transcript.arrivals_s,
        "counts": dataclasses.asdict(transcript.counts),
        "status": transcript.status,
        "finish": transcript.finish,
        "failure": transcript.failure,
        "message": transcript.message,
    }


def _of(run: BenchRun, role: Role) -> tuple[Transcript, ...]:
    return tuple(transcript for transcript in run.transcripts if transcript.role is role)
