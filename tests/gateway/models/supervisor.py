"""A supervisor without processes: it carries out orders when a test says so."""

from gateway.models.state_machine import Action, Admit, ModelStates, Refuse, Send, StateChanged
from protocol.errors import TaskError
from protocol.process.control import (
    Line,
    Listed,
    ModelInfo,
    ModelKept,
    ModelRecall,
    NoRoom,
    Order,
    Phase,
    Verb,
    WorkerReport,
)


class Pretended:
    """`ModelStates` with its orders, and the requests that were admitted or refused."""

    def __init__(self, *names: str, models_max: int = 4) -> None:
        self.states = ModelStates(models_max=models_max)
        self.orders: list[Order] = []
        """Orders that are not carried out yet."""
        self.done: list[str] = []
        """Every order, as `load a`."""
        self.admitted: list[int] = []
        self.refused: dict[int, TaskError] = {}
        self.told: list[str] = []
        self.lists(*names)

    def lists(self, *names: str, error: str = "", **stamps: str) -> None:
        infos = (ModelInfo(name=name, stamp=stamps.get(name, "")) for name in names)
        self.perform(self.states.listed(Listed(models=tuple(infos), error=error)))

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(order):
                    self.orders.append(order)
                    self.done.append(f"{order.verb} {order.model}")
                case Admit(request_id):
                    self.admitted.append(request_id)
                case Refuse(request_id, error):
                    self.refused[request_id] = error
                case StateChanged(model):
                    self.told.append(f"{model} {self.states.models[model].state}")

    def ask(self, request_id: int, name: str) -> None:
        model = self.states.find(name)
        self.states.touch(model)
        self.perform(self.states.enqueue(request_id, model))

    def release(self, name: str) -> None:
        self.perform(self.states.release(self.states.models[name]))

    def insist(self, name: str) -> None:
        self.perform(self.states.insist(self.states.models[name]))

    def hear(self, line: Line) -> None:
        """Take a line of a supervisor that has other gateways too."""
        match line:
            case WorkerReport():
                self.perform(self.states.reported(line))
            case ModelRecall(model=model, is_overdue=is_overdue):
                self.perform(self.states.recalled(model, is_overdue=is_overdue))
            case ModelKept(model=model, is_kept=is_kept):
                self.perform(self.states.kept(model, is_kept=is_kept))
            case NoRoom(model=model):
                self.perform(self.states.refused_room(model))

    def says(self, model: str, phase: Phase, exit_code: int = 0, why: str = "") -> None:
        report = WorkerReport(
            model=model, worker=f"{model}-1", phase=phase, exit_code=exit_code, why=why
        )
        self.perform(self.states.reported(report))

    def obey(self) -> None:
        """Carry out all orders, and those that follow from them."""
        while self.orders:
            order = self.orders.pop(0)
            if order.verb is Verb.LOAD:
                self.says(order.model, Phase.LOADING)
                self.says(order.model, Phase.READY)
            else:
                self.says(order.model, Phase.GONE)

    def running(self) -> list[str]:
        return [name for name, model in self.states.models.items() if model.is_running]
