"""The guess of how many tokens a task has to read."""

import tracemalloc

from gateway.pool.routing.prompt_length import guess_tokens
from protocol.wire.side_tasks import Rerank


def test_a_query_counts_with_each_document() -> None:
    assert guess_tokens(Rerank(query="q" * 40, documents=("d" * 80, "", "d"))) == 30 + 10 + 10
    assert guess_tokens(Rerank(query="", documents=())) == 1


def test_a_long_query_is_not_copied_for_each_document() -> None:
    """1 MB of it with 1,000 documents took a gigabyte, and the loop for 3.7 s."""
    task = Rerank(query="q" * 1_000_000, documents=("d",) * 64)
    tracemalloc.start()
    guess_tokens(task)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1_000_000
