"""Whatever a seed makes of a valid request: an answer in time, no 500, no death, no leak."""

import signal
from collections.abc import Iterator

import pytest

from tests.hostile.health import Footprint, leaks
from tests.hostile.mutants.mutate import mutant
from tests.hostile.mutants.run import FAKE, send_mutants, start
from tests.hostile.mutants.seeds import SEEDS
from tests.hostile.pool import TargetPool
from tests.models.shallow import N_ALL_TOKENS, shallow_path

pytestmark = pytest.mark.timeout(300)

N_FAKE, N_REAL = 400, 150
BOUND_S = 30.0
"""Of one answer: `python -m tests.hostile.mutants` looks closer, with nothing beside it."""


@pytest.fixture
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetPool]:
    pool = start(tmp_path_factory.mktemp("mutants"), FAKE)
    yield pool
    pool.close()


@pytest.fixture
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetPool]:
    pool = start(tmp_path_factory.mktemp("mutants"), f'model = "{shallow_path(N_ALL_TOKENS)}"')
    yield pool
    pool.close()


def check(pool: TargetPool, n: int) -> None:
    before = Footprint.of(pool)
    tally = send_mutants(pool, range(n), bound_s=BOUND_S)
    assert tally.faults == []
    assert leaks(pool, before) == []
    pool.signal(signal.SIGTERM)
    assert pool.wait(30) == 0


def test_mutants_do_the_fake_engine_no_harm(fake: TargetPool) -> None:
    check(fake, N_FAKE)


@pytest.mark.model
def test_mutants_do_the_real_engine_no_harm(real: TargetPool) -> None:
    check(real, N_REAL)


def test_a_seed_alone_decides_what_is_sent() -> None:
    for seed in range(300):
        assert mutant(seed) == mutant(seed)


def test_every_endpoint_is_attacked() -> None:
    names = {" ".join(mutant(seed)[0].name.split(" ")[1:3]) for seed in range(1500)}
    assert names == {f"{one.method} {one.path}:" for one in SEEDS}
