"""Reads facts about ZeroMQ; runs as a child, because a broken library may crash."""

import json
import sys

import zmq


def main() -> None:
    """Print the facts as JSON."""
    facts = {
        "version": zmq.zmq_version(),
        "ipc": bool(zmq.has("ipc")),
        "curve": bool(zmq.has("curve")),
        "longest": int(getattr(zmq, "IPC_PATH_MAX_LEN", 107)),
    }
    sys.stdout.write(json.dumps(facts))


if __name__ == "__main__":
    main()
