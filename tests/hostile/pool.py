"""The pool that is attacked: two workers on the default model, everything on that can be."""

from pathlib import Path

from tests.e2e.process import python
from tests.e2e.served import Served
from tests.hostile.case import Target
from tests.models.mmproj import write_mmproj

N_EMBD = 576
"""Width of the default model."""

_CONFIG = """
runtime_dir = "{folder}/run"

[gateway]
port = 0
metrics = true
media_path = "{folder}/media"

[[worker]]
name = "w"
count = 2
n_slots = 4
n_ctx = 4096
slot_save_path = "{folder}/slots"
mmproj = "{folder}/mmproj.gguf"
embeddings = true
"""


class TargetPool(Served):
    """A served pool, and the folder that it works in."""

    folder: Path

    @property
    def socket(self) -> Path:
        """The socket that workers dial."""
        return self.folder / "run" / "workers.sock"


def start_pool(folder: Path, extra: str = "") -> TargetPool:
    """Start it; `extra` is more of the configuration file."""
    for name in ("media", "slots"):
        (folder / name).mkdir(exist_ok=True)
    write_mmproj(folder / "mmproj.gguf", N_EMBD)
    config = folder / "pool.toml"
    config.write_text(_CONFIG.format(folder=folder) + extra)
    pool = TargetPool(python("-m", "worker.cli", "serve", "--config", str(config)))
    pool.folder = folder
    pool.wait_until_ready()
    return pool


def target_of(pool: Served) -> Target:
    """Ask the pool what the corpus must know."""
    model = pool.client.get("/v1/models").json()["data"][0]
    settings = pool.client.get("/props").json()["default_generation_settings"]
    return Target(int(model["meta"]["n_vocab"]), int(settings["n_ctx"]), settings)
