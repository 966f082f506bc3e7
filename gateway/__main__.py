"""`python -m gateway`."""

from protocol.process.imports import importing


def main() -> None:
    """Import the gateway and run it."""
    with importing():
        from gateway.cli import gateway
    gateway()


if __name__ == "__main__":
    main()
