"""`python -m tests.hostile.thief ENDPOINT KEYS NAME`: a peer with a worker's key does its worst.

KEYS is a folder with `gateway.pub` and `NAME.key`. Prints what it has done, a line each.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import zmq

from protocol.curve import read_public, read_secret
from protocol.wire import codec, facts
from protocol.wire import messages as m
from protocol.wire.sharing import SettingsReport
from tests.hostile.wire_frames import attack_wire

_HUGE = (1 << 63) - 1
_N_HELLOS, _N_PINGS, _LARGE = 20_000, 400_000, 64 << 20
_CARD = facts.ModelCard(name="stolen", path="", n_slots=2, n_ctx=64, n_ctx_total=128)
CARDS = (
    {"n_slots": _HUGE},
    {"n_slots": -1},
    {"n_slots": 5000},
    {"n_slots": 1 << 40, "n_prefetch": 1 << 40},
    {"n_ctx": -_HUGE},
    {"n_vocab": -1},
    {"name": "x" * 100_000},
    {"name": ""},
    {"aliases": ("a",) * 100_000},
    {"n_params": -_HUGE},
    {"build": "b" * 10_000},
    {"tags": ("a", "t" * 10_000)},
)
"""What no model's card says."""


class Thief:
    """Dials with a key that is authorised."""

    def __init__(self, endpoint: str, keys: Path, name: str) -> None:
        self.endpoint, self.name = endpoint, name
        self._server = read_public(keys / "gateway.pub").key.encode()
        self._secret = read_secret(keys / f"{name}.key").encode()
        self._n = 0

    def prepare(self, socket: "zmq.Socket[bytes]") -> None:
        """Set the keys of a socket."""
        socket.setsockopt(zmq.CURVE_SERVERKEY, self._server)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, zmq.curve_public(self._secret))
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret)

    @contextmanager
    def connected(self) -> Iterator["zmq.Socket[bytes]"]:
        """Dial; what cannot be sent within a second when the block ends is dropped.

        ZeroMQ dials no more for a socket whose key has been refused: sending would block for ever.
        """
        self._n += 1
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.IDENTITY, f"{self.name}:{self._n}:0.0".encode())
            dealer.setsockopt(zmq.LINGER, 1000)
            dealer.setsockopt(zmq.SNDHWM, 0)
            dealer.setsockopt(zmq.SNDTIMEO, 1000)
            self.prepare(dealer)
            dealer.connect(self.endpoint)
            with suppress(zmq.Again):
                yield dealer

    def hello(self, **more: Any) -> bytes:
        """Return a greeting as its first frame."""
        hello = m.Hello(worker=self.name, epoch=self._n, model="stolen")
        return codec.encode(0, [replace(hello, **more)])

    def _greeted(self, *frames: bytes) -> None:
        with self.connected() as dealer:
            for data in (self.hello(), *frames):
                dealer.send(data)
            dealer.poll(300)

    # ---- what it does -------------------------------------------------------------------------

    def cards(self) -> None:
        """Say to be ready with cards that cannot be."""
        for changed in CARDS:
            card = replace(_CARD, **changed)
            self._greeted(codec.encode(1, [m.Ready(card=card)]))

    def reports(self) -> None:
        """Report what cannot be counted, and grant more than there is."""
        ready = codec.encode(1, [m.Ready(card=_CARD, granted=_HUGE)])
        self._greeted(ready)
        for stats in (facts.Stats(n_prompt=_HUGE), facts.Stats(step_s=float("nan"))):
            heartbeat = m.Heartbeat(step=-1, busy=-_HUGE, stats=stats, granted=_HUGE, others=-_HUGE)
            self._greeted(codec.encode(1, [m.Ready(card=_CARD)]), codec.encode(2, [heartbeat]))
        told = SettingsReport(system_version=(_HUGE, "z"), scales_version=(-_HUGE, ""))
        self._greeted(codec.encode(1, [m.Ready(card=_CARD)]), codec.encode(2, [told]))

    def large(self) -> None:
        """Send frames of 64 MiB, of which each byte is a number, greeted and not."""
        body = b"\x92\x01\x91\x92\xa4ping\x81\xa1a\xdd" + _LARGE.to_bytes(4, "big")
        data = body + bytes(_LARGE)
        with self.connected() as dealer:
            dealer.send(data)
            dealer.poll(2000)
        self._greeted(data, data)

    def names(self) -> None:
        """Use names that the key is not for, and those of others."""
        for name in ("w", "gateway", "far", "a\nERROR forged", "x" * 100_000, ""):
            with self.connected() as dealer:
                dealer.send(self.hello(worker=name))
                dealer.poll(300)

    def replays(self) -> None:
        """Send one frame over and over, and frames out of their order."""
        heartbeat = codec.encode(1, [m.Heartbeat(step=1, busy=0)])
        self._greeted(*[heartbeat] * 100)
        self._greeted(*(codec.encode(n, [m.Ping()]) for n in (3, 2, 1, _HUGE, -_HUGE)))

    def hellos(self) -> None:
        """Greet without end."""
        with self.connected() as dealer:
            for number in range(_N_HELLOS):
                dealer.send(self.hello(model=f"model {number}"))
            dealer.poll(2000)

    def pings(self) -> None:
        """Send as many frames as the line bears, in their order, for some seconds."""
        with self.connected() as dealer:
            dealer.send(self.hello())
            until = time.monotonic() + 6.0
            for number in range(1, _N_PINGS):
                dealer.send(codec.encode(number, [m.Ping()]))
                if not number % 1000 and time.monotonic() > until:
                    break
            dealer.poll(2000)

    def wire(self) -> None:
        """Send all that strangers send."""
        attack_wire(self.endpoint, "w", self.prepare)


def main() -> None:
    """Do all of it, each with a key of its own, for keys are blocked in the end."""
    endpoint, keys, *names = sys.argv[1:]
    acts: list[Callable[[Thief], None]] = [
        *(Thief.cards, Thief.reports, Thief.large, Thief.names),
        *(Thief.replays, Thief.hellos, Thief.pings, Thief.wire),
    ]
    for act, name in zip(acts, names, strict=True):
        start_s = time.monotonic()
        act(Thief(endpoint, Path(keys), name))
        sys.stdout.write(f"{act.__name__} {time.monotonic() - start_s:.1f} s\n")


if __name__ == "__main__":
    main()
