"""What a worker allocates for a sound or a picture goes back to the system, not to glibc's heap."""

import subprocess
import sys
from pathlib import Path

from worker.supervisor.children.launch import download

ROOT = Path(__file__).parents[3]
_CODE = """
from pathlib import Path
def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) // 256
before = resident_mib()
largest = bytearray(30 << 20)
del largest  # glibc raises its own limit with what is freed
blocks, kept = [], []
for _ in range(8):
    blocks.append(bytearray(8 << 20))
    kept.append([bytearray(2000) for _ in range(500)])
for block in blocks:
    block[:] = b"x" * len(block)
del block, blocks
print(resident_mib() - before)
"""


def test_large_blocks_go_back_to_the_system() -> None:
    env = download("any", {}, "").env
    ran = subprocess.run(
        [sys.executable, "-c", _CODE], env=env, capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < 30  # of 64, and 8 that live
    unit = (ROOT / "deploy/systemd/llamapool-worker@.service").read_text()
    assert f"MALLOC_MMAP_THRESHOLD_={env['MALLOC_MMAP_THRESHOLD_']}" in unit
