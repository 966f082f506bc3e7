"""The folder of a proof: what was gathered, what was built, and what each stage has found."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = "vocabulary.gguf"
"""A tiny model of the kit, whose vocabulary the large random ones take."""
ALL_LAYERS = 999
"""-ngl above what any model has."""


class Unfit(Exception):
    """Something is missing or wrong here; the text says what to do."""


class Unfinished(Exception):
    """Time is up; the same command continues where this one ended."""


@dataclass(slots=True)
class Kit:
    """One proof, in a folder that is not part of the repository."""

    folder: Path
    """What was gathered; it may be read-only."""
    work: Path
    """What is built and found."""
    is_dry: bool = False
    """On a CPU, with a tiny model and few rounds: whether everything runs, not how fast."""
    server: Path | None = None
    """A llama-server that is there already; None: the one that is built."""
    deadline: float = field(default_factory=lambda: time.monotonic() + 540)

    @property
    def build(self) -> Path:
        """Folder of the build."""
        return self.work / "build"

    @property
    def site(self) -> Path:
        """Folder of the Python packages."""
        return self.work / "site"

    @property
    def llama_server(self) -> Path | None:
        """The binary beside which ours is measured; None if there is none."""
        built = self.build / "bin" / "llama-server"
        return self.server or (built if built.exists() else None)

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; raises `Unfinished` if there are none."""
        left = self.deadline - time.monotonic()
        if left < 1:
            raise Unfinished
        return left

    def environment(self) -> dict[str, str]:
        """Return the variables under which our code runs on the library that was built."""
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "GGML_NO_BACKTRACE": "1"}
        paths = [str(self.site)] if self.site.exists() else []
        env["PYTHONPATH"] = os.pathsep.join([*paths, str(ROOT), env.get("PYTHONPATH", "")])
        if not self.is_dry:
            env["PARITY_RECORDED"] = str(self.work / "recorded")
        if (self.build / "bin").exists():
            env["LLAMA_CPP_LIB_PATH"] = env["MTMD_CPP_LIB"] = str(self.build / "bin")
            env["LD_LIBRARY_PATH"] = f"{self.build / 'bin'}:{env.get('LD_LIBRARY_PATH', '')}"
        return env

    def run(self, argv: Sequence[str], name: str, cwd: Path = ROOT) -> str:
        """Run a command until the deadline and return its output, which is kept as a log.

        Raises `Unfinished` if time is up, `Unfit` with the end of the output if it fails.
        """
        log = self.work / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            process = subprocess.Popen(
                argv,
                cwd=cwd,
                env=self.environment(),
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                process.wait(self.left_s)
            except subprocess.TimeoutExpired:
                raise Unfinished from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        text = log.read_text(errors="replace")
        if process.returncode:
            raise Unfit(f"{name} failed ({process.returncode}), see {log}:\n{text[-1500:]}")
        return text

    def python(self, name: str, *args: str) -> str:
        """Run our Python with arguments."""
        return self.run([sys.executable, *args], name)

    def once(self, name: str, find: Callable[[], Any]) -> Any:
        """Return what `find` has found before, or find it now and keep it."""
        path = self.work / "found" / f"{name}.json"
        if path.exists():
            return json.loads(path.read_text())
        found = find()
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.replace(path)
        return found

    def model(self, gigabytes: float) -> Path:
        """Return a model of random weights, written now if it is not there."""
        path = self.work / f"random-{gigabytes:g}.gguf"
        if not path.exists():
            part = path.with_suffix(".part")
            width = 256 if gigabytes < 0.1 else 4096
            size = ["--gigabytes", str(gigabytes), "--width", str(width)]
            words = self.folder / VOCABULARY
            size += ["--vocabulary", str(words)] if words.exists() else []
            self.python("random-model", "-m", "benchmarks.random_model", str(part), *size)
            part.replace(path)
        return path
