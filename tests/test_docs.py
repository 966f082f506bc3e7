"""The documents say what the code does."""

import importlib.util
import re
from pathlib import Path

from protocol.wire.tags import TAGS

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("benchmarks/**/*.md")]
)


def test_generated_tables_are_current() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.stale() == [], "run: python docs/generate.py"


def test_the_first_page_lists_every_page() -> None:
    docs = ROOT / "docs"
    listed = (docs / "README.md").read_text(encoding="utf-8")
    for page in docs.rglob("*.md"):
        if page.name != "README.md":
            assert f"]({page.relative_to(docs)})" in listed, page.name


def test_named_metrics_exist() -> None:
    known = (ROOT / "docs" / "running" / "metrics.md").read_text(encoding="utf-8")
    for page in PAGES:
        if "notes" in page.parts or page.name == "changelog.md":
            continue
        for name in re.findall(
            r"\b(?:llamapool_|vllm:|llamacpp:)[a-z_]*[a-z]\b(?!\*)", page.read_text()
        ):
            series = re.sub(r"_(bucket|sum|count)$", "", name)
            assert f"| `{series}` |" in known, f"{page.name} names {name}"


def test_links_to_files_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_lines_are_not_too_long() -> None:
    for page in PAGES:
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
            is_table = line.lstrip().startswith("|")
            assert is_table or "://" in line or len(line) <= 120, f"{page.name}:{number}"


def test_named_source_files_exist() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(
            r"`((?:gateway|worker|protocol|tests|benchmarks|docs)/[\w/.]+\.\w+)`", text
        ):
            assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_links_to_headings_lead_somewhere() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", text):
            path = page.parent / target if target else page
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, (
                f"{page.name}: {target}#{anchor}"
            )


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_named_folders_exist() -> None:
    for page in PAGES:
        if "notes" in page.parts or page.name == "changelog.md":
            continue
        for name in re.findall(r"`((?:gateway|worker|protocol|tests)/[\w/]*/)`", page.read_text()):
            assert (ROOT / name).is_dir(), f"{page.name} names {name}"


def test_the_architecture_names_every_package() -> None:
    text = (ROOT / "docs" / "building" / "architecture.md").read_text(encoding="utf-8")
    packages = [
        path.parent.relative_to(ROOT)
        for name in ("gateway", "protocol", "worker")
        for path in (ROOT / name).glob("*/__init__.py")
    ]
    assert [str(one) for one in packages if f"`{one}/`" not in text] == []


def test_names_of_the_code_in_pages_for_developers_exist() -> None:
    words: set[str] = set()
    for folder in ("gateway", "worker", "protocol", "tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            words |= {path.stem, *re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    pages = [ROOT / "CONTRIBUTING.md", *(ROOT / "docs" / "building").glob("*.md")]
    for page in pages:
        for text in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")):
            for name in re.findall(r"\b(?:_[a-z]\w+|[a-z]+_\w+|[A-Z]+_\w+)\b", text):
                assert name in words, f"{page.name} names {name}"


def test_the_page_on_the_protocol_names_every_message() -> None:
    page = (ROOT / "docs" / "building" / "protocol.md").read_text(encoding="utf-8")
    for tag in TAGS:
        assert f"`{tag}`" in page, tag
