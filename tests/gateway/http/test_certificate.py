"""A certificate that clients refuse today is told at the start and at each reload."""

import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.http.certificate import expires_at, fault_of_dates
from gateway.metrics.metrics import Metrics
from gateway.pool.pool import Pool
from gateway.server import _warn_of_dates
from protocol.config.config import GatewayConfig
from tests.gateway.metrics.samples import scraped

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
]

AUTHORITY = """
[ca]
default_ca = own
[own]
new_certs_dir = .
database = index.txt
serial = serial
default_md = sha256
policy = names
[names]
commonName = supplied
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a key and a request for a certificate."""
    path = tmp_path_factory.mktemp("certificates")
    (path / "authority.cnf").write_text(AUTHORITY)
    (path / "index.txt").touch()
    (path / "serial").write_text("01\n")
    openssl(path, "req -newkey rsa:2048 -nodes -subj /CN=host -keyout key.pem -out request.pem")
    return path


def openssl(folder: Path, command: str) -> None:
    subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)


def certified(folder: Path, first: int, last: int) -> GatewayConfig:
    """Make a certificate that is valid from the start of one year to that of another."""
    name = f"{first}.pem"
    dates = f"-startdate {first}0101000000Z -enddate {last}0101000000Z"
    files = f"-keyfile key.pem -in request.pem -out {name}"
    openssl(folder, f"ca -batch -config authority.cnf -selfsign {files} {dates}")
    return GatewayConfig(ssl_cert_file=str(folder / name), ssl_key_file=str(folder / "key.pem"))


@pytest.mark.parametrize(
    ("first", "last", "fault"),
    [
        (2020, 2021, "certificate has expired"),
        (2090, 2091, "certificate is not yet valid"),
        (2000, 2089, ""),
    ],
)
def test_a_certificate_that_is_not_valid_today_is_told(
    folder: Path, first: int, last: int, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "index.txt").write_text("")  # else it may have one certificate of a name
    config = certified(folder, first, last)
    assert fault_of_dates(config.ssl_cert_file, config.ssl_key_file) == fault
    _warn_of_dates(config)
    assert [record.message for record in caplog.records] == ["certificate not valid"] * bool(fault)
    end = datetime(last, 1, 1, tzinfo=UTC).timestamp()
    assert expires_at(config.ssl_cert_file, config.ssl_key_file) == end


def test_the_metrics_say_when_the_certificate_expires() -> None:
    metrics = Metrics()
    view = Pool(GatewayConfig(), metrics).status
    name = "llamapool_certificate_expiry_timestamp_seconds "
    assert f"\n{name}" not in scraped(metrics, view)
    metrics.certificate_expires_at = 1.7e9
    assert f"\n{name}1.7e+09\n" in scraped(metrics, view)


def test_without_a_certificate_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    _warn_of_dates(GatewayConfig())
    assert not caplog.records
