"""D13: requests that schemathesis derives from the description of the API."""

import asyncio
import importlib.util
import re
import sys

from gateway.soak.scene import PoolShape, Scene
from tests.faults.case import FaultCase

HAS_SCHEMATHESIS = importlib.util.find_spec("schemathesis") is not None
"""`make faults` installs it; nothing else needs it."""
_RUN = "from schemathesis.cli import schemathesis; schemathesis()"
_SECONDS = 120
_CONFIG = '[checks]\nnot_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 501]\n'
"""501 says which option turns a feature on."""
_LEFT_OUT = ("/pool/events", "/v1/pool/events", "/models/sse", "/admin/reload", "/admin/rollout")
"""What never ends, and what replaces the processes that are to be looked at."""


async def requests_of_the_description(scene: Scene) -> None:
    """Ask for whatever `/openapi.json` allows, and for what it does not, for two minutes."""
    left_out = "|".join(map(re.escape, _LEFT_OUT))
    (scene.pool.folder / "schemathesis.toml").write_text(_CONFIG)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _RUN, "--config-file", "schemathesis.toml", "run"),
        f"{scene.pool.url}/openapi.json",
        *(
            "--checks",
            "not_a_server_error",
            "--mode",
            "all",
            "--phases",
            "examples,coverage,fuzzing",
        ),
        *("--seed", str(scene.rng.randrange(1 << 30)), "--max-time", str(_SECONDS)),
        *("--request-timeout", "30", "--workers", "2", "--no-color"),
        *("--exclude-path-regex", f"^({left_out})"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=scene.pool.folder,
    )
    told, _ = await process.communicate()
    text = told.decode(errors="replace")
    found = re.search(r"(\d[\d,]*) generated", text)
    n_asked = int(found[1].replace(",", "")) if found else 0
    scene.expect(process.returncode == 0, text[-3000:])
    scene.expect(n_asked > 300, f"only {n_asked} requests were made: {text[-500:]}")


CASES = (
    [
        FaultCase(
            name="D13",
            what="two minutes of requests that schemathesis derives from `/openapi.json`: no 5xx",
            inject=requests_of_the_description,
            pool=PoolShape(worker={"fake_step_ms": 2}),
            n_clients=2,
        )
    ]
    if HAS_SCHEMATHESIS
    else []
)
