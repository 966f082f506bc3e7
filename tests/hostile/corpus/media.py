"""Images that are none or too large, odd forms, and addresses that are not the client's."""

import base64
import struct
import zlib
from collections.abc import Callable
from typing import Any

from tests.hostile.case import CaseList, HostileCase, Target


def cases(target: Target) -> list[HostileCase]:
    """Return media in every spelling; a model without a projector refuses them all."""
    found = CaseList("media")
    for label, url in _urls().items():
        part = {"type": "image_url", "image_url": {"url": url}}
        found.chat(label, messages=[{"role": "user", "content": [part]}])
    for label, data in _FILES.items():
        body = {"prompt": "Look [img-1] at", "n_predict": 2}
        image = {"id": 1, "data": base64.b64encode(data).decode()}
        found.post(label, "/completion", body | {"image_data": [image]})
        native = {"prompt_string": "Look <__media__> at", "multimodal_data": [image["data"]]}
        found.post(f"{label}, native", "/completion", {"prompt": native, "n_predict": 2})
    for label, image_data in _ODD.items():
        found.post(
            label, "/completion", {"prompt": "[img-1]", "n_predict": 2, "image_data": image_data}
        )
    sound = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    found.chat("half a sound", messages=[{"role": "user", "content": [sound]}])
    found.chat("many images", messages=[{"role": "user", "content": [_part("")] * 1000}])
    found.post("20 MB image", "/v1/chat/completions", lambda: _big(20_000_000))
    form = ((b"content-type", b"multipart/form-data; boundary=b"),)
    for label, make in _FORMS.items():
        found.post(label, "/v1/audio/transcriptions", make, headers=form)
    found.post("a form without a boundary", "/v1/audio/transcriptions", b"--b--")
    return found.cases


def _part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def _big(n: int) -> dict[str, Any]:
    url = "data:image/png;base64," + "A" * n
    return {"max_tokens": 2, "messages": [{"role": "user", "content": [_part(url)]}]}


def png_header(width: int, height: int) -> bytes:
    """Return the beginning of a picture of any size, whose pixels never come."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", len(header))
        + chunk
        + struct.pack(">I", zlib.crc32(chunk))
    )


_FILES: dict[str, bytes] = {
    "nothing": b"",
    "noise": bytes(range(256)) * 40,
    "half a PNG": png_header(10, 10),
    "a PNG of 65,000 squared": png_header(65_000, 65_000),
    "a PNG of no size": png_header(0, 0),
    "a PNG of 4 billion": png_header(2**31 - 1, 2**31 - 1),
    "half a JPEG": b"\xff\xd8\xff\xe0" + b"\0" * 100,
    "a GIF": b"GIF89a" + b"\xff" * 20,
    "a BMP of -1": b"BM" + struct.pack("<IIIIiiHHI", 54, 0, 54, 40, -1, -1, 1, 24, 0),
    "half a WAV": b"RIFF\xff\xff\xff\xffWAVEfmt " + b"\xff" * 20,
    "an MP3": b"ID3\x04" + b"\x7f" * 400,
    "a PSD": b"8BPS\0\x01" + b"\xff" * 60,
    "an HDR": b"#?RADIANCE\n\n-Y 99999999 +X 99999999\n",
    "a PNM": b"P6 99999 99999 255\n",
}

_NAMED = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
_END = b"\r\n--b--\r\n"
_FORMS: dict[str, Callable[[], bytes]] = {
    "a form of line ends": lambda: _NAMED + b"\r\n" * 5_000_000 + _END,
    "a form of near ends": lambda: _NAMED + b"\r\n--" * 2_500_000 + _END,
    "a form of false ends": lambda: _NAMED + b"\r\n--bx" * 1_500_000 + _END,
    "a form of padding": lambda: _NAMED + b"\r\n--b" + b" " * 10_000_000,
    "a form of JSON": lambda: (
        _NAMED.replace(b'; filename="a"', b"") + b"[" + b"{}," * 5_000_000 + b"{}]" + _END
    ),
    "a form of parts": lambda: (_NAMED + b"\r\n") * 100_000 + _END,
    "a form of one header": lambda: b"--b\r\nA: " + b"x" * 10_000_000,
    "a form of headers": lambda: b"--b\r\n" + b"A: b\r\n" * 1_000_000,
    "a form of noise": lambda: bytes(range(256)) * 40_000,
    "a form without an end": lambda: _NAMED + b"x" * 10_000_000,
    "a form in a form": lambda: (_NAMED + _NAMED) * 100 + _END,
    "a sound in a form": lambda: _NAMED + _FILES["half a WAV"] + _END,
}

_ODD: dict[str, Any] = {
    "image_data is an object": {"id": 1},
    "image without data": [{"id": 1}],
    "image without id": [{"data": "AAAA"}],
    "id is 2**64": [{"id": 2**64, "data": "AAAA"}],
    "id is -1": [{"id": -1, "data": "AAAA"}],
    "the same id twice": [{"id": 1, "data": "AAAA"}] * 2,
    "no base64": [{"id": 1, "data": "*" * 1000}],
    "data is a number": [{"id": 1, "data": 5}],
}


def _urls() -> dict[str, str]:
    return {
        "no address": "",
        "loopback": "http://127.0.0.1:1/x.png",
        "loopback in decimal": "http://2130706433/x.png",
        "loopback in IPv6": "http://[::ffff:127.0.0.1]/x.png",
        "metadata": "http://169.254.169.254/latest/meta-data/",
        "a file": "file:///etc/passwd",
        "a file above": "file://../../etc/passwd",
        "another scheme": "gopher://127.0.0.1/x",
        "a user": "http://a:b@127.0.0.1/",
        "a port beyond": "http://127.0.0.1:99999/",
        "a newline": "http://127.0.0.1/\r\nX: y",
        "a long name": "http://" + "a" * 5000 + "/",
        "data without base64": "data:image/png,abc",
        "data without type": "data:;base64,AAAA",
        "data of text": "data:text/html;base64,AAAA",
        "an unclosed bracket": "http://[::1",
    }
