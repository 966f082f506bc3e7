"""Reads server-sent events from pieces of a body, cut anywhere."""


class SseParser:
    """Collects bytes and returns the data of complete events."""

    def __init__(self) -> None:
        self._rest = b""
        self._held = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of every event that is complete now."""
        if self._held or b"\r" in data:
            data = self._unified(data)
        *events, self._rest = (self._rest + data).split(b"\n\n")
        payloads = []
        for event in events:
            if event.startswith(b"data: ") and b"\n" not in event:
                payloads.append(event[6:])  # nearly all there are
            elif (payload := _payload(event)) is not None:
                payloads.append(payload)
        return payloads

    def _unified(self, data: bytes) -> bytes:
        """Turn all line ends into line feeds; a last carriage return waits for more."""
        data, self._held = self._held + data, b""
        if data.endswith(b"\r"):
            data, self._held = data[:-1], b"\r"
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _payload(event: bytes) -> bytes | None:
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line[:5] == b"data:"]
    return b"\n".join(lines) if lines else None
