"""A tenant above its share leaves slots to those that had one a moment ago."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.pool.tasks.task import Task
from gateway.pool.tenants.slot_shares import SlotShares
from tests.gateway.dispatching import dispatcher, done, places, task

FLOOD = "flood"


class Slots:
    """A pool of slots in which seldom tenants have one task each, and one has all it may have."""

    def __init__(self, n_slots: int, n_light: int) -> None:
        self.n_slots = n_slots
        self.now = 0.0
        self.light: dict[str, Task | None] = {f"light-{i}": None for i in range(n_light)}
        self.flood: list[Task] = []
        self._shares = SlotShares()
        self._n_tasks = 0

    @property
    def n_free(self) -> int:
        return self.n_slots - len(self.flood) - sum(one is not None for one in self.light.values())

    def toggle(self, tenant: str) -> None:
        """Let a seldom tenant ask, or its task end."""
        running = self.light[tenant]
        if running is not None:
            self._shares.returned(running)
            self.light[tenant] = None
            return
        assert self.n_free > 0, f"{tenant} has to wait"
        self.light[tenant] = self._assign(tenant)

    def fill(self) -> None:
        """Give the flood every slot that is not kept from it."""
        while self.n_free and not self._is_held_back():
            self.flood.append(self._assign(FLOOD))

    def end_of_flood(self) -> None:
        if self.flood:
            self._shares.returned(self.flood.pop())

    def _assign(self, tenant: str) -> Task:
        one = self._new(tenant)
        self._shares.assigned(one, self.now)
        return one

    def _new(self, tenant: str) -> Task:
        self._n_tasks += 1
        return Task(task(self._n_tasks, tenant=tenant), self.now)

    def _is_held_back(self) -> bool:
        free = (self.n_slots, self.n_free, self.now)
        return self._shares.holds_back(self._new(FLOOD), {FLOOD}, *free)


@given(st.data())
def test_who_has_one_task_at_a_time_never_waits_for_a_flood(data: st.DataObject) -> None:
    n_slots = data.draw(st.integers(4, 32), "slots")
    pool = Slots(n_slots, data.draw(st.integers(1, n_slots - 1), "seldom tenants"))
    for tenant in pool.light:  # all had one at once
        pool.toggle(tenant)
    some = st.lists(st.sampled_from(list(pool.light)), unique=True)
    for _ in range(data.draw(st.integers(1, 4), "rounds")):
        ended = data.draw(some, "end together")
        for tenant in ended:
            pool.toggle(tenant)
        for _ in range(data.draw(st.integers(0, 4), "tasks of the flood that end")):
            pool.end_of_flood()
        pool.fill()
        for tenant in ended:
            pool.toggle(tenant)
            pool.fill()


def test_who_asks_no_more_has_its_slot_for_five_seconds() -> None:
    pool = Slots(8, 5)
    for tenant in pool.light:
        pool.toggle(tenant)
    for tenant in pool.light:
        pool.toggle(tenant)
    pool.fill()
    assert len(pool.flood) == 2  # five had one at once: now it and four others; two to spare
    pool.now = 4.9
    pool.fill()
    assert len(pool.flood) == 2
    pool.now = 5.1
    pool.fill()
    assert len(pool.flood) == 8


def test_those_whose_answers_end_together_all_find_a_slot_again() -> None:
    pool = dispatcher("a", n_slots=8)
    for i in range(6):
        pool.submit(task(i, tenant=f"light-{i}"), 0.0)
    for i in range(50, 60):
        pool.submit(task(i, tenant=FLOOD), 0.0)
    for i in range(6):
        pool.ended("a", done(i), 1.0)
    found = [places(pool.submit(task(10 + i, tenant=f"light-{i}"), 1.1)) for i in range(6)]
    assert found == [[(10 + i, "a")] for i in range(6)]
