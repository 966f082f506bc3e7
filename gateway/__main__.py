"""`python -m gateway`."""

from protocol.process.imports import importing_command


def main() -> None:
    """Import the gateway and run it."""
    with importing_command():
        from gateway.cli import gateway
    gateway()


if __name__ == "__main__":
    main()
