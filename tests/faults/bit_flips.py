"""Flips bits of what passes a gate."""

import random

from gateway.soak.gate import TcpGate


class BitFlips:
    """Flips one bit in the next chunk for each call of `flip`."""

    def __init__(self, gate: TcpGate) -> None:
        self.n_flipped = 0
        self._n_to_flip = 0
        self._rng = random.Random(0)
        gate.transform = self._transformed

    def flip(self) -> None:
        """Flip one bit of the next chunk that passes, in either direction."""
        self._n_to_flip += 1

    def _transformed(self, data: bytes) -> bytes:
        if not self._n_to_flip:
            return data
        self._n_to_flip -= 1
        self.n_flipped += 1
        broken = bytearray(data)
        broken[self._rng.randrange(len(broken))] ^= 1 << self._rng.randrange(8)
        return bytes(broken)
