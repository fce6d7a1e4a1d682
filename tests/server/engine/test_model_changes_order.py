"""Which worker changes its models when: any order of loads, deaths, failures and new workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from example_manifest import EMPTY
from hypothesis import example, given, settings
from hypothesis import strategies as st

from veltair.server.engine.models import model_changes
from veltair.server.engine.models.model_changes import ModelChanges
from veltair.server.ipc import messages as m

TARGET = 3


@dataclass(eq=False)
class Worker:
    holds: set[int]
    state: str = "starting"
    alive: bool = True
    change: Any = None
    pid: int = 1
    process: Any = field(default_factory=lambda: SimpleNamespace(kill=lambda: None))


class Workers:
    """In the place of the supervisor."""

    cell_bytes = 1 << 30

    def __init__(self) -> None:
        self.all: list[Worker] = []
        self.idle: list[Worker] = []
        self.served: set[int] = set()

    @property
    def complete(self) -> bool:
        return sum(worker.state == "idle" for worker in self.all) >= TARGET

    def start(self) -> None:
        self.all.append(Worker(set(self.served)))

    def serve(self, specs: Any, artifacts: Any) -> None:
        assert artifacts == {spec.digest: f"files of {spec.number}" for spec in specs}
        self.served = {spec.number for spec in specs}

    def change(self, worker: Worker, change: Any, descriptors: Any) -> None:
        assert descriptors == (f"files of {change.tenant.number}" if isinstance(change, m.LoadModel) else ())
        self.idle.remove(worker)
        worker.state, worker.change = "changing", change

    def release(self, worker: Worker) -> None:
        worker.state = "idle"
        if worker.alive:
            self.idle.append(worker)

    def kill_hung(self, worker: Worker, doing: str) -> None:
        pass


class Served:
    def __init__(self) -> None:
        self.specs: dict[int, Any] = {}

    def is_idle(self, number: int) -> bool:
        return True

    def prepare(self, spec: Any, artifact: Any) -> Any:
        return SimpleNamespace(spec=spec, make_some=lambda: True)

    def add(self, prepared: Any) -> None:
        assert prepared.spec.number not in self.specs
        self.specs[prepared.spec.number] = prepared.spec

    def remove(self, number: int) -> None:
        del self.specs[number]


class Opened:
    """In the place of the open artifacts."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()

    def add(self, spec: Any, descriptors: Any) -> Any:
        self.numbers.add(spec.number)
        return SimpleNamespace(path="/", manifest=EMPTY)

    def files(self, number: int) -> Any:
        assert number in self.numbers
        return f"files of {number}"

    def remove(self, number: int) -> None:
        self.numbers.remove(number)


class Story:
    """The front's numbers beside the changes under test."""

    def __init__(self) -> None:
        self.workers, self.served, self.opened = Workers(), Served(), Opened()
        self.answers: list[Any] = []
        self.changes = ModelChanges(self.served, self.workers, self.opened, self.answers.append)  # type: ignore[arg-type]
        self.taken: dict[int, str] = {}  # by number: what the front has done with it
        self.now_ns = 0
        for _ in range(TARGET):
            self.workers.start()

    def advance(self) -> None:
        self.now_ns += 1
        self.changes.advance(self.now_ns)
        for answer in self.answers:
            match answer:
                case m.ModelLoaded(number=number):
                    assert self.taken[number] == "loading"
                    self.taken[number] = "live"
                case m.ModelFailed(number=number):
                    assert self.taken[number] == "loading"
                    self.taken[number] = "failed"
                case m.ModelUnloaded(number=number):
                    assert self.taken.pop(number) in ("failed", "leaving")
                    assert not any(
                        number in worker.holds
                        or (worker.state == "changing" and worker.change == m.LoadModel(spec_of(number)))
                        for worker in self.workers.all
                    )
        self.answers.clear()
        live = {number for number, state in self.taken.items() if state == "live"}
        assert live <= set(self.served.specs)
        assert self.opened.numbers == set(self.taken)
        for worker in self.workers.idle:  # these take queries
            assert live <= worker.holds
        assert sum(worker.state == "changing" and worker.holds >= live for worker in self.workers.all) <= 1

    def do(self, what: str, which: int) -> None:
        workers = self.workers
        match what:
            case "load" if which not in self.taken:
                self.taken[which] = "loading"
                self.changes.begin(m.LoadModel(spec_of(which)))
            case "unload" if self.taken.get(which) == "live":
                self.taken[which] = "leaving"
                self.changes.begin(m.UnloadModel(which))
            case "ready" if starting := [worker for worker in workers.all if worker.state == "starting"]:
                workers.release(starting[0])
                self.changes.worker_idle(starting[0], self.now_ns)  # type: ignore[arg-type]
            case "answer" | "fail" if changing := [worker for worker in workers.all if worker.state == "changing"]:
                worker = changing[which % len(changing)]
                if isinstance(worker.change, m.UnloadModel):
                    answer: Any = m.ModelUnloaded(worker.change.number)
                elif what == "fail" and self.taken.get(worker.change.tenant.number) != "live":
                    answer = m.ModelFailed(worker.change.tenant.number, "ArtifactError", "no")
                else:
                    answer = m.ModelLoaded(worker.change.tenant.number)
                self.changes.worker_answered(worker, answer, self.now_ns)  # type: ignore[arg-type]
            case "late":
                self.now_ns += model_changes.MOST_NS
            case "die" if workers.all:
                worker = workers.all.pop(which % len(workers.all))
                worker.alive = False
                if worker in workers.idle:
                    workers.idle.remove(worker)
                self.changes.worker_died(worker, "died")  # type: ignore[arg-type]
                workers.start()
        self.advance()


def spec_of(number: int) -> m.TenantSpec:
    return m.TenantSpec(f"t{number}", "/", f"ab{number}", 10**7, 0.95, 1, batching=False, number=number)


STEPS = st.sampled_from(("load", "load", "unload", "ready", "answer", "answer", "answer", "fail", "die", "late"))


# The last worker to load a model dies; its successor started without it, and is ready after the others serve it.
SUCCESSOR = [("ready", 0)] * 3 + [("load", 1), ("answer", 0), ("answer", 0), ("die", 2), ("ready", 0)]


@settings(max_examples=400, deadline=None)
@example(SUCCESSOR)
@given(st.lists(st.tuples(STEPS, st.integers(0, 3)), max_size=80))
def test_who_takes_queries_holds_all_that_is_live_and_every_change_ends(steps: list[tuple[str, int]]) -> None:
    story = Story()
    for what, which in steps:
        story.do(what, which)
    for _ in range(60):
        story.do("ready", 0)
        story.do("answer", 0)
    assert not story.changes.under_way
    assert set(story.taken.values()) <= {"live"}
    assert len(story.workers.idle) == TARGET
