"""Signals that come before a command can handle them: in its imports, and in the start of `serve`.

Each arrives at a fixed point, because the driver sends it to its own process there.
"""

import signal
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.process import Process

pytestmark = pytest.mark.slow

IMPORTING = textwrap.dedent(
    """
    import os, signal, sys
    class Strike:
        def find_spec(self, name, path=None, target=None):
            if name == sys.argv[1]:
                os.kill(os.getpid(), signal.SIGINT)
    sys.meta_path.insert(0, Strike())
    from {module} import main
    main()
    """
)

STARTING = textwrap.dedent(
    """
    import os, signal, sys
    from worker import cli
    settle, number = cli._on_this_host, signal.Signals[sys.argv.pop(1)]
    def struck(*args):
        os.kill(os.getpid(), number)
        return settle(*args)
    cli._on_this_host = struck
    cli.main()
    """
)


@pytest.mark.parametrize(
    ("module", "at"),
    [
        ("worker.entry", "worker.cli"),
        ("worker.__main__", "worker.worker_command"),
        ("gateway.__main__", "gateway.cli"),
    ],
)
def test_ctrl_c_during_the_imports_ends_a_command_without_a_traceback(module: str, at: str) -> None:
    argv = [sys.executable, "-c", IMPORTING.format(module=module), at]
    with closing(Process(argv)) as one:
        assert one.wait() == -signal.SIGINT
        assert one.text == ""


def start(tmp_path: Path, signal_name: str) -> Process:
    config = tmp_path / "pool.toml"
    config.write_text('[[worker]]\nname = "w"\nalias = "m"\nbackend = "fake"\n')
    argv = ["serve", "--config", str(config), "--port", "0"]
    (tmp_path / "run").mkdir()
    env = {"XDG_RUNTIME_DIR": str(tmp_path / "run")}
    return Process([sys.executable, "-c", STARTING, signal_name, *argv], env)


def test_sigterm_during_the_start_ends_it_and_leaves_no_folder(tmp_path: Path) -> None:
    with closing(start(tmp_path, "SIGTERM")) as one:
        assert one.wait() == 0
        assert "Traceback" not in one.text
    assert list((tmp_path / "run").iterdir()) == []


def test_sighup_during_the_start_is_a_reload_after_it(tmp_path: Path) -> None:
    with closing(start(tmp_path, "SIGHUP")) as one:
        one.wait_for("reloading signal=SIGHUP")
        one.wait_for("listening")
        one.signal(signal.SIGTERM)
        assert one.wait() == 0
