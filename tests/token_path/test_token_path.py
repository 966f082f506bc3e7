"""The page on the protocol names the files that a token passes, and no other."""

import re

from tests.token_path.watch import ROOT, path_of_a_token

PAGE = ROOT / "docs" / "building" / "protocol.md"


async def test_the_page_lists_the_files_that_a_token_passes() -> None:
    """`python -m tests.token_path` prints them."""
    section = PAGE.read_text(encoding="utf-8").split("## The path of a token")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    passed = await path_of_a_token()
    formatters = "gateway/api/*/"
    found = [formatters if name.startswith("gateway/api/") else name for name in passed]
    assert sorted(found) == sorted(listed)
    told = re.search(r"(\d+) files", section)
    assert told is not None and int(told[1]) == len(passed)
