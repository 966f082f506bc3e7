"""`python -m gateway`."""

import gc


def main() -> None:
    """Import the gateway without looking for garbage, of which imports leave none, and run it."""
    gc.disable()
    from gateway.cli import gateway

    gc.enable()
    gateway()


if __name__ == "__main__":
    main()
