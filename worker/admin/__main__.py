"""`python -m worker.admin COMMAND`, for checkouts that are not installed."""

import click

from worker.admin import commands

if __name__ == "__main__":
    click.Group(
        commands={
            "status": commands.status,
            "drain": commands.drain,
            "undrain": commands.undrain,
            "rollout": commands.rollout,
            "reload": commands.reload,
        }
    )()
