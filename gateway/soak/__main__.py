"""`python -m gateway.soak` is `llamapool soak`."""

from gateway.soak.cli import soak

if __name__ == "__main__":
    soak()
