"""Judges whether a GPU can be used, and whether the layers are really on it."""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.doctor.finding import Finding, fail, mib, ok, warn
from worker.doctor.library import PORTABLE, REBUILD
from worker.host.child import ChildOutcome
from worker.supervisor.children.exit_reasons import explain

GPU, LOAD = "gpu", "load"
_BUILD_GPU = REBUILD.format(args="-DGGML_CUDA=on")
_HOST_BUFFERS = re.compile(r"(CPU|.*_Host$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """Facts about the GPUs."""

    nodes: Sequence[str] = ()
    """Device files of NVIDIA or AMD GPUs."""
    has_uvm: bool = True
    """Whether `/dev/nvidia-uvm` exists and may be opened."""
    names: Sequence[str] = ()
    """GPUs that the driver reports."""
    driver_fault: str = ""
    offloads: bool = False
    """Whether llama.cpp was built for GPUs."""
    devices: Sequence[Mapping[str, Any]] = ()
    """Devices of llama.cpp: name, description, kind, total, free."""
    visible: str | None = None
    """`CUDA_VISIBLE_DEVICES` of the workers."""
    is_wanted: bool = False
    """Whether layers or devices were given."""


def read_driver(outcome: ChildOutcome) -> tuple[tuple[str, ...], str]:
    """Return the GPUs that the driver lists, or its error."""
    if outcome.code is None:
        return (), "the driver did not answer: it is stuck"
    if outcome.code:
        return (), f"asking the driver failed: {explain(outcome.code)}; {outcome.last_line}"
    return tuple(outcome.facts.get("names", ())), str(outcome.facts.get("fault", ""))


def check_gpu(facts: GpuFacts) -> Finding:
    """Judge whether llama.cpp can use the GPUs of this host."""
    seen = [device for device in facts.devices if device.get("kind") == "gpu"]
    if seen:
        return _check_seen(facts, seen)
    if not facts.nodes and not facts.names:
        if facts.is_wanted:
            remedy = (
                "is the driver installed, and is the GPU handed to this container (--gpus all)?"
            )
            return fail(GPU, "a GPU is requested, but this host has none", remedy)
        return ok(GPU, "none here: the CPU computes")
    return _check_unseen(facts)


def _check_seen(facts: GpuFacts, seen: Sequence[Mapping[str, Any]]) -> Finding:
    named = "; ".join(
        f"{device['name']} {device['description']}, "
        f"{mib(device['free'])} of {mib(device['total'])} free"
        for device in seen
    )
    asked = [part.strip() for part in (facts.visible or "").split(",") if part.strip()]
    if len(asked) > len(seen):
        remedy = "name the GPUs that nvidia-smi -L lists; the first wrong one hides those behind it"
        return fail(GPU, f"devices {facts.visible}: llama.cpp sees only {named}", remedy)
    return ok(GPU, named)


def _check_unseen(facts: GpuFacts) -> Finding:
    """Explain why llama.cpp does not see an existing GPU."""
    what = ", ".join(facts.names) or ", ".join(facts.nodes)
    level = fail if facts.is_wanted else warn
    if not facts.offloads:
        return level(GPU, f"{what}: this build of llama.cpp is for CPUs", _BUILD_GPU)
    if facts.visible is not None and facts.visible.strip() in ("", "-1"):
        text = f"{what}: hidden by CUDA_VISIBLE_DEVICES={facts.visible}"
        return level(GPU, text, "unset it, or give --devices")
    if not facts.has_uvm:
        remedy = "load it: nvidia-modprobe -u -c 0; in a container or unit, allow /dev/nvidia-uvm"
        return fail(GPU, f"{what}: /dev/nvidia-uvm is missing or may not be opened", remedy)
    if facts.driver_fault:
        remedy = "reload or update the driver, or reboot; see dmesg"
        return fail(GPU, f"{what}: {facts.driver_fault}", remedy)
    remedy = "the driver may be older than the CUDA that llama.cpp was built with: update it"
    return fail(GPU, f"{what}: llama.cpp sees no device", remedy)


# ---- loading ----------------------------------------------------------------------------------


def check_load(outcome: ChildOutcome, name: str, n_gpu_layers: int, *, is_wanted: bool) -> Finding:
    """Judge whether a model can be loaded and computed, and where its layers are."""
    facts = outcome.facts
    if outcome.code == 0 and "buffers" in facts:
        return _check_place(facts, name, n_gpu_layers, is_wanted)
    if outcome.code is None:
        remedy = "give it more time (--load-timeout), or a faster disk; is it on a network drive?"
        return fail(LOAD, f"{name}: loading did not end", remedy)
    if outcome.code == -signal.SIGILL:
        return fail(LOAD, f"{name}: died of an illegal instruction", PORTABLE)
    reason = str(facts.get("error") or outcome.last_line)
    remedy = "`llamapool serve -v` logs what llama.cpp says" if reason else "dmesg may tell more"
    why = reason if facts.get("error") else f"{explain(outcome.code)}; {reason}"
    return fail(LOAD, f"{name}: {why}", remedy)


def _check_place(
    facts: Mapping[str, Any], name: str, n_gpu_layers: int, is_wanted: bool
) -> Finding:
    took = f"{name}: loaded in {facts.get('seconds', 0.0):.1f} s and computed"
    weights, cache = mib_on_gpus(facts["buffers"], "model"), mib_on_gpus(facts["buffers"], "KV")
    n_offloaded, n_layers = facts["n_offloaded"], facts["n_layers"]
    if n_gpu_layers == 0:
        return ok(LOAD, f"{took}; all layers on the CPU, as asked")
    if not facts.get("offloads"):
        if is_wanted:
            text = f"{took}, on the CPU: this build of llama.cpp cannot offload layers"
            return fail(LOAD, text, _BUILD_GPU)
        return ok(LOAD, f"{took}; on the CPU")
    wanted = n_layers if n_gpu_layers < 0 else min(n_gpu_layers, n_layers)
    if not weights or n_offloaded < wanted:
        text = f"{took}, but only {n_offloaded} of {wanted} layers are on a GPU"
        level = fail if is_wanted else warn
        return level(LOAD, text, "see the line about the GPU, and its free memory")
    text = f"{took}; {n_offloaded} of {n_layers} layers on {_listed(weights, cache)}"
    missing = sum(weights.values()) * 2**20 / 2 - float(facts.get("taken", 0))
    if missing > 0:
        remedy = "other processes free memory meanwhile, or the driver pages: look at nvidia-smi"
        return warn(LOAD, f"{text}, but the driver reports {mib(facts['taken'])} taken", remedy)
    return ok(LOAD, text)


def mib_on_gpus(buffers: Sequence[tuple[str, str, float]], kind: str) -> dict[str, float]:
    """Add up the buffers of a kind (`model`, `KV`, `compute`) by GPU, in MiB."""
    found: dict[str, float] = {}
    for device, what, n_mib in buffers:
        if what == kind and not _HOST_BUFFERS.match(device):
            found[device] = found.get(device, 0.0) + n_mib
    return found


def _listed(weights: Mapping[str, float], cache: Mapping[str, float]) -> str:
    return ", ".join(
        f"{where} ({size:,.0f} MiB of weights, {cache.get(where, 0):,.0f} MiB of KV cache)"
        for where, size in weights.items()
    )
