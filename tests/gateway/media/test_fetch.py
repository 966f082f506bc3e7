"""Fetching images: what is taken, what is refused, and to whom nothing is ever sent."""

import asyncio
import contextlib
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import h11
import pytest

from gateway.media import fetch
from gateway.media.allow import AllowedUrls
from gateway.media.fetch import Fetcher, NotFetched

PNG = b"\x89PNG" * 10
OK = b"HTTP/1.1 200 OK\r\n"
IMAGE = OK + b"Content-Type: image/png\r\nContent-Length: 40\r\n\r\n" + PNG
MAX_BYTES = 1 << 20

Talk = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Says the same to everybody, and keeps what it was asked."""

    def __init__(self, answer: bytes | Talk) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.port = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
        if isinstance(self.answer, bytes):
            writer.write(self.answer)
        else:
            await self.answer(writer)
        writer.close()


@contextlib.asynccontextmanager
async def serving(answer: bytes | Talk, **options: Any) -> AsyncIterator[Server]:
    server = Server(answer)
    listener = await asyncio.start_server(server.talk, "127.0.0.1", 0, **options)
    server.port = listener.sockets[0].getsockname()[1]
    async with listener:
        yield server


def fetcher(*patterns: str, timeout_s: float = 10.0) -> Fetcher:
    return Fetcher(AllowedUrls(patterns or ("127.0.0.1:*",)), MAX_BYTES, timeout_s)


async def fetched(answer: bytes | Talk, **options: Any) -> bytes:
    async with serving(answer) as server:
        return await fetcher(**options).get(f"http://127.0.0.1:{server.port}/a.png?b=1", "image")


async def test_an_image_is_fetched() -> None:
    async with serving(IMAGE) as server:
        url = f"http://127.0.0.1:{server.port}/a.png?b=1#c"
        assert await fetcher().get(url, "image") == PNG
    (asked,) = server.asked
    assert asked.startswith("GET /a.png?b=1 HTTP/1.1\r\n")
    assert f"\r\nHost: 127.0.0.1:{server.port}\r\n" in asked


async def test_a_body_in_pieces_without_a_length_is_read_to_its_end() -> None:
    chunked = b"Content-Type: Image/PNG; x=y\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert await fetched(OK + chunked + b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n") == b"abc"
    assert await fetched(OK + b"Content-Type: application/octet-stream\r\n\r\nabc") == b"abc"
    assert await fetched(OK + b"\r\nabc") == b"abc"


async def test_a_body_in_chunks_of_one_byte_leaves_the_loop_to_others() -> None:
    """Its reader did not let the loop turn as long as it had something: 0.4 s, of 16 bodies 3 s."""
    chunked = b"Content-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n"
    reader, connection, turns = asyncio.StreamReader(), h11.Connection(h11.CLIENT), 0
    reader.feed_data(OK + chunked + b"1\r\na\r\n" * 10_000 + b"0\r\n\r\n")
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "a.test")]))

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    read = await fetcher()._read(connection, reader, "image")
    counting.cancel()
    assert read.body == b"a" * 10_000
    assert turns > 10


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", "answered with 404"),
        (b"HTTP/1.1 302 Go\r\nContent-Length: 0\r\n\r\n", "answered with 302"),
        (OK + b"Content-Type: text/html\r\n\r\n<p>", r"is text/html, not image/\*"),
        (OK + b"Content-Type: audio/wav\r\n\r\nRIFF", "is audio/wav"),
        (OK + b"Content-Type: image/png\r\nContent-Encoding: gzip\r\n\r\nabc", "compressed"),
        (OK + b"Content-Type: image/png\r\nContent-Length: 2000000\r\n\r\n", "larger than 1 MiB"),
        (OK + b"Content-Type: image/png\r\n\r\n" + bytes(2 << 20), "larger than 1 MiB"),
        (OK + b"Content-Type: image/png\r\nContent-Length: 40\r\n\r\nabc", "cannot be fetched"),
        (OK + b"X: " + b"x" * (1 << 20), "cannot be fetched"),
        (b"SSH-2.0-OpenSSH\r\n", "cannot be fetched"),
        (b"", "cannot be fetched"),
    ],
)
async def test_what_is_no_image_is_refused(answer: bytes, reason: str) -> None:
    with pytest.raises(NotFetched, match=reason):
        await fetched(answer)


async def test_a_server_that_says_nothing_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    silence = asyncio.Event()

    async def wait(writer: asyncio.StreamWriter) -> None:
        await silence.wait()

    async with serving(wait) as server:
        with caplog.at_level("INFO"), pytest.raises(NotFetched, match=r"within 0\.05 s"):
            await fetcher(timeout_s=0.05).get(f"http://127.0.0.1:{server.port}/?key=s3", "image")
        silence.set()
    (line,) = (one for one in caplog.records if one.message == "media not fetched")
    assert line.__dict__["host"] == "127.0.0.1"
    assert line.__dict__["cause"] == "not fetched within 0.05 s"


async def test_nobody_at_home_is_no_image(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(IMAGE) as server:
        pass
    with caplog.at_level("INFO"), pytest.raises(NotFetched, match="cannot be fetched"):
        await fetcher().get(f"http://127.0.0.1:{server.port}/?token=secret", "image")
    (line,) = (one for one in caplog.records if one.message == "media not fetched")
    assert line.__dict__["host"] == "127.0.0.1"
    assert "secret" not in str(line.__dict__)


async def test_a_host_without_a_pattern_is_never_asked() -> None:
    async with serving(IMAGE) as server:
        with pytest.raises(NotFetched, match="is not a host that this server fetches from"):
            await fetcher("a.test").get(f"http://127.0.0.1:{server.port}/", "image")
    assert server.asked == []


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f.1"])
async def test_a_name_of_this_machine_is_never_asked(host: str) -> None:
    async with serving(IMAGE) as server:
        with pytest.raises(NotFetched):
            await fetcher("*:*").get(f"http://{host}:{server.port}/", "image")
    assert server.asked == []


class Names:
    """Stands for the name service; a name may have another address each time."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)

    def __call__(self, host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        addresses = self.answers.pop(0)
        kind = socket.SOCK_STREAM
        return [(socket.AF_INET, kind, 6, "", (one, port)) for one in addresses]


async def test_the_address_that_was_judged_is_the_one_that_is_dialled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = Names(["127.0.0.1"], ["10.0.0.1"])
    monkeypatch.setattr(socket, "getaddrinfo", names)
    async with serving(IMAGE) as server:
        url = f"http://a.test:{server.port}/"
        assert await fetcher("a.test:*", "127.0.0.0/8").get(url, "image") == PNG
    assert len(names.answers) == 1


async def test_one_bad_address_condemns_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", Names(["93.184.215.14", "127.0.0.1"]))
    with pytest.raises(NotFetched, match="an address that this server does not fetch from"):
        await fetcher("a.test").get("http://a.test/", "image")


@pytest.mark.parametrize("is_refused", [False, True])
async def test_an_address_that_does_not_answer_leaves_time_for_the_next(
    monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    """The first one took all the time of the second, which answers."""
    connect, tried = asyncio.open_connection, list[str]()

    async def open_connection(host: str, *args: Any, **kwargs: Any) -> Any:
        tried.append(host)
        if host != "127.0.0.1" and is_refused:
            raise ConnectionRefusedError
        if host != "127.0.0.1":
            await asyncio.Event().wait()
        return await connect(host, *args, **kwargs)

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    monkeypatch.setattr(fetch, "_HEAD_START_S", 3600 if is_refused else 0.001)
    monkeypatch.setattr(socket, "getaddrinfo", Names(["127.0.0.7", "127.0.0.1", "127.0.0.8"]))
    async with serving(IMAGE) as server:
        url = f"http://a.test:{server.port}/"
        assert await fetcher("a.test:*", "127.0.0.0/8").get(url, "image") == PNG
    assert tried[:2] == ["127.0.0.7", "127.0.0.1"]


async def test_a_host_of_which_no_address_answers_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", Names(["127.0.0.7", "127.0.0.8"]))
    async with serving(IMAGE) as server:
        url = f"http://a.test:{server.port}/"
        with pytest.raises(NotFetched, match="cannot be fetched"):
            await fetcher("a.test:*", "127.0.0.0/8").get(url, "image")


@pytest.mark.parametrize("host", ["a" * 64, "a" * 70 + ".test", "a." * 200 + "test"])
async def test_a_name_that_cannot_be_looked_up_is_refused(host: str) -> None:
    with pytest.raises(NotFetched, match="cannot be fetched"):
        await fetcher("*").get(f"http://{host}/", "image")


async def test_a_redirect_is_followed_where_it_may_go() -> None:
    async with serving(IMAGE) as second:
        location = b"Location: http://127.0.0.1:%d/b.png\r\n" % second.port
        answer = b"HTTP/1.1 307 Go\r\nContent-Length: 0\r\n" + location + b"\r\n"
        assert await fetched(answer) == PNG
    assert second.asked[0].startswith("GET /b.png ")


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("http://127.0.0.2/", "is not a host"),
        ("http://169.254.169.254/latest/", "is not a host"),
        ("file:///etc/passwd", "must be http or https"),
        ("/again", "more than 3 times"),
        ("http://[::1", "no URL"),
    ],
)
async def test_a_redirect_leads_nowhere_else(location: str, reason: str) -> None:
    answer = f"HTTP/1.1 302 Go\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
    with pytest.raises(NotFetched, match=reason):
        await fetched(answer.encode())


@pytest.mark.slow
async def test_https_needs_a_certificate_that_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, cert = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=a.test"]
    name = ["-addext", "subjectAltName=DNS:a.test", "-keyout", key, "-out", cert]
    subprocess.run([*request, *name], check=True, capture_output=True)  # noqa: ASYNC221
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    monkeypatch.setattr(socket, "getaddrinfo", Names(*[["127.0.0.1"]] * 3))
    async with serving(IMAGE, ssl=context) as server:
        url = f"https://a.test:{server.port}/"
        with pytest.raises(NotFetched, match="cannot be fetched"):
            await fetcher("a.test:*", "127.0.0.1").get(url, "image")
        monkeypatch.setenv("SSL_CERT_FILE", cert)
        assert await fetcher("a.test:*", "127.0.0.1").get(url, "image") == PNG
        monkeypatch.setattr(
            server, "answer", b"HTTP/1.1 302 Go\r\nLocation: http://a.test/\r\n\r\n"
        )
        with pytest.raises(NotFetched, match="from https to something else"):
            await fetcher("a.test:*", "127.0.0.1").get(url, "image")
