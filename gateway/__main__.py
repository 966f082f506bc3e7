"""`python -m gateway`."""

from gateway.cli import gateway

if __name__ == "__main__":
    gateway()
