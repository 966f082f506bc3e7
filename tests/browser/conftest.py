"""A headless Chromium, the pools that its pages are served by, and pages that watch themselves."""

import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from tests.browser.tab import Tab, open_tab
from tests.browser.watched import Strangers, Watched
from tests.e2e.conftest import toml
from tests.e2e.served import Served, serving
from tests.models.shallow import exact_path

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "docs" / "using" / "samples"
_BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
"""The first one found runs; the shell, which has no window, takes a fifth less CPU."""
_NOT_USED = (
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "SpareRendererForSitePerProcess"),
    # A list replaces the one before it: the rest is what Playwright's own says.
    *("AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "HttpsUpgrades"),
    *("HttpsFirstBalancedModeAutoEnable", "LensOverlay", "MediaRouter", "PaintHolding"),
    *("ThirdPartyStoragePartitioning", "AvoidCorsURLLoaderRestartOnRedirect"),
    *("OptimizationHints", "NetworkTimeServiceQuerying", "AimEnabled", "PreconnectToSearch"),
)
"""What Chromium draws or starts beside a page takes a tenth of all CPU and is seen by no test."""
ARGS = [
    f"--disable-features={','.join(_NOT_USED)}",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Pages of one server share a process: to start one for each takes a twentieth of all CPU.
    "--renderer-process-limit=1",
    # Software draws one tile of a window faster than the usual twenty.
    "--default-tile-width=1280",
    "--default-tile-height=800",
]


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def strangers() -> AsyncIterator[Strangers]:
    """The hosts that are not this one: what the browser asks them for is noted, and refused."""
    async with Strangers().listening() as listening:
        yield listening


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def browser(strangers: Strangers) -> AsyncIterator[Browser]:
    """One browser for all tests here; it does not idle beside those of other folders."""
    program = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if program is None:
        pytest.skip("no browser: install Debian's chromium-headless-shell")
    expect.set_options(timeout=15_000)
    args = [*ARGS, f"--proxy-server=127.0.0.1:{strangers.port}"]  # not for addresses of this host
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(
            executable_path=program, args=args, chromium_sandbox=False
        )
        yield running
        await running.close()


@pytest.fixture(scope="package")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two workers with the real model's first layers, and the documents' pages beside our own."""
    folder: Path = tmp_path_factory.mktemp("www")
    for page in (SAMPLES / "page.html", Path(__file__).parent / "jokes.html"):
        shutil.copy(page, folder)
    config = ("--config", str(ROOT / "configs" / "cpu-tiny.toml"), "--port", "0")
    model = ("--model", exact_path(), "--alias", "SmolLM2")
    with serving(*config, *model, "--path", str(folder)) as served:
        yield served


@pytest.fixture(scope="package")
def fake_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A served pool without keys whose worker repeats what it is told."""
    folder: Path = tmp_path_factory.mktemp("fake-pool")
    table = toml({"port": 0, "heartbeat_s": 0.2})
    worker = toml({"backend": "fake", "n_slots": 4})
    (folder / "pool.toml").write_text(f"[gateway]\n{table}[[worker]]\n{worker}")
    with serving("--config", str(folder / "pool.toml")) as served:
        yield served


@pytest.fixture(scope="package")
def port() -> Iterator[int]:
    """The port of all gateways that tests run themselves: the browser has its page in the cache."""
    with socket.socket() as kept:  # it does not listen, so that each of them can in its turn
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def open_tabs(browser: Browser) -> list[Tab]:
    """The tab that the next test gets, if there is one; they end with their browser."""
    return []


@pytest_asyncio.fixture(loop_scope="session")
async def tab(
    request: pytest.FixtureRequest, browser: Browser, strangers: Strangers, open_tabs: list[Tab]
) -> AsyncIterator[Tab]:
    """A page that many tests share; after a failure, or with `own_tab`, the next gets another."""
    is_own = request.node.get_closest_marker("own_tab") is not None
    shared = None if is_own or not open_tabs else open_tabs.pop()
    one = shared or await open_tab(browser, strangers)
    n_failed = request.session.testsfailed
    yield one
    if is_own or request.session.testsfailed > n_failed:
        await one.context.close()
    else:
        await one.clear()
        open_tabs.append(one)


@pytest.fixture
def context(tab: Tab) -> BrowserContext:
    """A browser that remembers nothing, 1280 by 800."""
    return tab.context


@pytest.fixture
def watched(tab: Tab) -> Iterator[Watched]:
    """What the pages of the context do wrong; at the end there must be nothing."""
    tab.watched.clear()
    yield tab.watched
    assert tab.watched.faults() == []


@pytest.fixture
def page(tab: Tab, watched: Watched) -> Page:
    """An empty page in a context that is watched."""
    return tab.page
