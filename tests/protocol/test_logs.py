"""The log as llama-server's options shape it."""

import io
import json
import logging
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.config.config import LogConfig
from protocol.errors import ConfigError
from protocol.process import logs
from protocol.process.log_file import LogFile
from protocol.process.log_pause import LogPause


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the root logger back as it was."""
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in root.handlers:
        if handler not in before:
            handler.close()
    root.handlers[:] = before
    root.setLevel(level)


def written(config: LogConfig, level: int = logging.WARNING) -> str:
    stream = io.StringIO()
    logs.configure("part", config, stream=stream)
    logging.getLogger("part.pool").log(level, "worker lost")
    return stream.getvalue()


def test_a_line_has_time_level_and_part_unless_told_otherwise() -> None:
    assert written(LogConfig()).rstrip().endswith("Z WARNING part.pool worker lost")
    assert written(LogConfig(timestamps=False)) == "WARNING part.pool worker lost\n"
    assert written(LogConfig(timestamps=False, prefix=False)) == "worker lost\n"


def test_lines_can_be_json_and_coloured() -> None:
    fields = json.loads(written(LogConfig(format="json")))
    assert (fields["level"], fields["event"]) == ("WARNING", "worker lost")
    assert written(LogConfig(colors="on")).count("\x1b[") == 2


@pytest.mark.parametrize(
    ("verbosity", "shown"), [(0, "IWE"), (1, "E"), (2, "WE"), (3, "IWE"), (4, "DIWE"), (9, "DIWE")]
)
def test_verbosity_is_llama_servers(verbosity: int, shown: str) -> None:
    levels = {10: "D", 20: "I", 30: "W", 40: "E"}
    config = LogConfig(verbosity=verbosity)
    assert "".join(letter for level, letter in levels.items() if written(config, level)) == shown


def test_a_file_gets_the_lines_too_and_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "llama.log"
    path.write_text("before\n")
    config = LogConfig(file=str(path), colors="on", timestamps=False)
    written(config)
    assert path.read_text() == "before\nWARNING part.pool worker lost\n"
    with pytest.raises(ConfigError, match="cannot write log file"):
        logs.configure("gateway", LogConfig(file=str(tmp_path / "no" / "x.log")))


def test_a_full_disk_costs_the_lines_of_the_file_alone(capfd: pytest.CaptureFixture[str]) -> None:
    """Each line was a traceback on standard error, and the supervisor made one of each of these."""
    stream = io.StringIO()
    logs.configure("part", LogConfig(file="/dev/full", timestamps=False), stream=stream)
    for number in range(3):
        logging.getLogger("part").warning("done %d", number)
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if "log file" not in line] == [
        f"WARNING part done {number}" for number in range(3)
    ]
    (told,) = [line for line in lines if "log file not written file=/dev/full" in line]
    assert 'cause="No space left on device"' in told
    assert capfd.readouterr() == ("", "")


def test_a_disk_that_is_nearly_full_is_told_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short lines fit between the long ones: each of these was a line of its own."""
    stream, write, clock = io.StringIO(), os.write, [0.0]
    pause = partial(LogPause, lambda: 1e6 + clock[0])
    monkeypatch.setattr("protocol.process.log_file.LogPause", pause)
    logs.configure("part", LogConfig(file=str(tmp_path / "pool.log")), stream=stream)
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: 200 - clock[0] % 2 * 199]))
    for seconds, n_told in ((1, 1), (2, 1), (3, 1), (4, 1), (63, 2)):
        clock[0] = seconds
        logging.getLogger("part").warning("done")
        assert stream.getvalue().count("log file not written") == n_told


def test_a_line_that_was_cut_is_ended_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "llama.log"
    config = LogConfig(file=str(path), timestamps=False)
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:12]))
    written(config)
    monkeypatch.undo()
    logging.getLogger("part.pool").warning("worker lost")
    assert path.read_text() == "WARNING part\nERROR part \nWARNING part.pool worker lost\n"


def event(form: str, **fields: object) -> str:
    stream = io.StringIO()
    config = LogConfig(format=form, timestamps=False, prefix=False)
    logs.configure("part", config, stream=stream)
    logging.getLogger("part").warning("done", extra=fields)
    return stream.getvalue().rstrip("\n")


@pytest.mark.parametrize(
    ("value", "text", "json_value"),
    [
        ("w1", "w1", "w1"),
        ("", '""', ""),
        ("is gone", '"is gone"', "is gone"),
        ('say "a"', r'"say \"a\""', 'say "a"'),
        ("a=b", '"a=b"', "a=b"),
        ("a\nb\u2028", r'"a\nb\u2028"', "a\nb\u2028"),
        (r"C:\new", r"C:\new", r"C:\new"),
        (7, "7", 7),
        (0.1234567, "0.1235", 0.1235),
        (600.0, "600", 600.0),
        (float("inf"), "inf", "inf"),
        (True, "true", True),
        (("a", "b"), "a,b", ["a", "b"]),
        (["a b", "c"], '"a b,c"', ["a b", "c"]),
        (Path("/x"), "/x", "/x"),
        (ValueError("no"), "no", "no"),
    ],
    ids=str,
)
def test_a_field_keeps_its_type_in_json_and_is_one_word_of_text(
    value: object, text: str, json_value: object
) -> None:
    assert event("text", worker=value) == f"done worker={text}"
    assert json.loads(event("json", worker=value))["worker"] == json_value


def test_a_field_without_a_value_is_left_out() -> None:
    assert event("text", worker=None, task=0) == "done task=0"
    assert "worker" not in json.loads(event("json", worker=None))


def test_lines_of_libraries_keep_their_text() -> None:
    stream = io.StringIO()
    logs.configure("gateway", LogConfig(timestamps=False), stream=stream)
    logging.getLogger("asyncio").error("%s was never\nretrieved", "task")
    assert stream.getvalue() == "ERROR gateway asyncio task was never\\nretrieved\n"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(codec=None), max_size=40), st.booleans())
def test_what_is_logged_never_makes_a_line_of_its_own(text: str, has_trace: bool) -> None:
    stream = io.StringIO()
    logs.configure("part", LogConfig(timestamps=False), stream=stream)
    try:
        raise ValueError(text)
    except ValueError:
        logging.getLogger("part").error(
            "schema=%s", text, extra={"cause": text}, exc_info=has_trace
        )
    first, *more = stream.getvalue().encode("utf-8").decode().rstrip("\n").split("\n")
    assert first.startswith("ERROR part schema=")
    assert len(first.splitlines()) == 1
    assert bool(more) == has_trace
    assert all(line.startswith("    ") and len(line.splitlines()) == 1 for line in more)


def test_letters_of_any_script_stay_readable() -> None:
    assert logs.one_line("größer 大 \t x") == "größer 大 \t x"
    assert logs.one_line("a\nb\x1b[31m\u2028\ud800") == r"a\nb\x1b[31m\u2028\ud800"


def test_a_log_file_that_cannot_be_opened_is_not_closed_at_exit(tmp_path: Path) -> None:
    handlers: list[object] = vars(logging)["_handlerList"]  # those that `logging` closes at exit
    n_handlers = len(handlers)
    with pytest.raises(OSError) as caught:
        LogFile(str(tmp_path / "no" / "log"))
    assert len(handlers) == n_handlers, caught.tb  # the traceback keeps the object alive


def test_a_file_that_is_renamed_or_removed_is_opened_anew(tmp_path: Path) -> None:
    path, old = tmp_path / "pool.log", tmp_path / "pool.log.1"
    logs.configure("part", LogConfig(file=str(path)), stream=io.StringIO())
    lines = logging.getLogger("part")
    lines.warning("one")
    path.rename(old)
    lines.warning("two")
    lines.warning("three")
    assert [file.read_text().count("\n") for file in (old, path)] == [1, 2]
    path.unlink()
    lines.warning("four")
    assert path.read_text().endswith(" part four\n")


def test_a_file_that_cannot_be_opened_anew_is_told_once_and_tried_again(tmp_path: Path) -> None:
    folder, stream = tmp_path / "logs", io.StringIO()
    folder.mkdir()
    logs.configure("part", LogConfig(file=str(folder / "pool.log")), stream=stream)
    lines = logging.getLogger("part")
    folder.rename(tmp_path / "away")
    lines.warning("one")
    lines.warning("two")
    assert stream.getvalue().count("log file not written") == 1
    folder.mkdir()
    lines.warning("three")
    assert (folder / "pool.log").read_text().endswith(" part three\n")
