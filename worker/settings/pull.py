"""The command `llamapool pull`: fetches a model before a server needs it."""

import click

from protocol.errors import ConfigError
from worker.files.hub import Repository
from worker.settings.arguments import CONTEXT, CommandFailed


@click.command(context_settings=CONTEXT)
@click.argument("name", metavar="USER/MODEL[:QUANT]")
@click.option(
    "--hf-file",
    default="",
    help="File of the repository. Default: that of QUANT, else Q4_K_M, Q8_0 or the first.",
)
@click.option("--mmproj/--no-mmproj", default=True, help="Also fetch the projector, if it has one.")
@click.option("--hf-token", default="", envvar="HF_TOKEN", help="Access token. [env: HF_TOKEN]")
def pull(name: str, hf_file: str, *, mmproj: bool, hf_token: str) -> None:
    """Fetch a model of Hugging Face into its cache, for `serve -hf`, and print its paths.

    Of a repository with a preset.ini only that file is fetched.
    """
    try:
        hub = Repository(name, token=hf_token, offline=False)
        preset = "" if hf_file else hub.preset()
        paths = [preset] if preset else _with_projector(hub, hf_file, mmproj=mmproj)
    except ConfigError as error:
        raise CommandFailed(str(error)) from None
    for path in paths:
        click.echo(path)
    if preset:
        click.echo("its models are fetched when they are loaded, or by `llamapool pull`", err=True)


def _with_projector(hub: Repository, hf_file: str, *, mmproj: bool) -> list[str]:
    model = hub.name_of_model(hf_file)
    projector = hub.name_of_projector(model) if mmproj else ""
    return [hub.fetch(file) for file in (model, projector) if file]
