"""Times to wait on a command line."""

import click
import pytest
from click.testing import CliRunner

from tests.worker.settings.test_arguments import given
from worker.cli import main


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e300", "soon"])
@pytest.mark.parametrize("command", [("drain", "w", "--timeout"), ("doctor", "--load-timeout")])
def test_a_time_that_never_passes_is_refused(command: tuple[str, ...], text: str) -> None:
    result = CliRunner().invoke(main, [*command, text])
    assert result.exit_code == 2
    assert f"Invalid value for '{command[-1]}'" in result.output


@pytest.mark.parametrize("option", ["--timeout", "--tensor-split"])
def test_nan_is_no_value_of_serve(option: str) -> None:
    with pytest.raises(click.BadParameter, match="finite"):
        given(option, "nan")
