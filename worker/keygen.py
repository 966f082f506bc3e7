"""`llamapool keygen`: a pair of keys with which a gateway or a worker speaks tcp."""

import os
import socket
from pathlib import Path

import click

from protocol.curve import PUBLIC_SUFFIX, SECRET_SUFFIX, public_text, secret_text

_GATEWAY_HINT = """\
This gateway:   llamapool gateway --bind tcp://ADDRESS:PORT \\
                    --gateway-curve-key {secret} --worker-keys FOLDER
Every worker:   copy {public} to its host and give --gateway-keys {name}"""
_WORKER_HINT = """\
This worker:    llamapool worker --connect tcp://GATEWAY:PORT \\
                    --worker-curve-key {secret} --gateway-keys FILE
Every gateway:  copy {public} into the folder of its --worker-keys"""


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--name", default=socket.gethostname, show_default="the host's", help="Of the files.")
@click.option("--role", type=click.Choice(["gateway", "worker"]), help="Whose key it is.")
@click.option(
    "--worker",
    "workers",
    multiple=True,
    metavar="PATTERN",
    help="Name that a worker with this key may have, as `gpu-1/*`; may be repeated. [default: any]",
)
def keygen(folder: Path, name: str, role: str | None, workers: tuple[str, ...]) -> None:
    """Make a pair of keys for tcp: NAME.key stays secret here, NAME.pub goes to the other side.

    All workers of a host may share one key. Existing files are never overwritten.
    """
    import zmq  # not needed by the other commands

    if not name or "/" in name or name.startswith("."):
        raise click.UsageError(f"--name {name}: must be the name of a file")
    if role == "gateway" and workers:
        raise click.UsageError("--worker: a gateway's key has no worker names")
    for pattern in workers:
        if (
            not pattern
            or any(character in pattern for character in '"\\')
            or not pattern.isprintable()
        ):
            raise click.UsageError(f"--worker {pattern}: must be a name or a pattern")
    secret, public = folder / f"{name}{SECRET_SUFFIX}", folder / f"{name}{PUBLIC_SUFFIX}"
    public_key, secret_key = (key.decode() for key in zmq.curve_keypair())
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (secret, public):
            if path.exists():
                raise click.ClickException(f"{path} exists: choose another --name, or remove it")
        _write(secret, secret_text(secret_key), 0o600)
        try:
            _write(public, public_text(public_key, workers), 0o644)
        except OSError:
            secret.unlink()
            raise
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename}: {error.strerror}") from error
    click.echo(f"{secret}   secret: it stays on this host, with mode 0600")
    click.echo(f"{public}   public: copy it to the other side")
    for hint in _hints(role):
        click.echo("\n" + hint.format(secret=secret, public=public, name=public.name))


def _hints(role: str | None) -> list[str]:
    hints = {"gateway": _GATEWAY_HINT, "worker": _WORKER_HINT}
    return [hints[role]] if role else list(hints.values())


def _write(path: Path, text: str, mode: int) -> None:
    """Write a new file of this mode, whatever the umask."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
    except OSError as error:
        if not isinstance(error, FileExistsError):
            path.unlink(missing_ok=True)  # empty, it would be in the way of the next try
        raise OSError(error.errno, error.strerror, str(path)) from error
