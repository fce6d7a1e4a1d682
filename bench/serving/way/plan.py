"""What is measured: the models, their loads and targets, and the order of the measurements."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from veltair.loadgen.scenario import TenantLoad

RAW, LONE, SHARED, CPU, PEAK, MIX = ROWS = ("raw", "lone", "shared", "cpu", "peak", "mix")
PROTOCOLS = ("grpc", "http")
DEMO_MIX = "demo"  # the three models together, with the loads and targets of scenarios/demo.toml
DEMO_SHARE = 0.2  # of the mix's peak, for its latencies


class Subject(NamedTuple):
    """A model that is served alone, with the loads that it gets.

    >>> SUBJECTS["dlrm"].tenant(1000.0).percentile
    0.95
    """

    name: str
    title: str
    moderate_qps: float  # for CPU times: far below any peak
    first_qps: float  # where the search for a peak begins
    target_ms: float
    percentile: float
    batch: int  # rows of a query when it is timed outside of a server
    one_thread: bool  # how Triton's engines run it: a row is too little for two threads, and the second one would spin
    peak_protocols: tuple[str, ...]

    def tenant(self, qps: float) -> TenantLoad:
        """The tenant's load at this rate; queries have one row."""
        return TenantLoad(self.name, qps, self.target_ms, self.percentile)


SUBJECTS = {
    subject.name: subject
    for subject in (
        # In the demo's mix a query of DLRM has 1 to 32 rows, 16 in the mean.
        Subject("dlrm", "DLRM, one row (7 KB)", 200.0, 500.0, 10.0, 0.95, 16, True, PROTOCOLS),
        Subject("mobilenet_v2", "MobileNet-V2 (0.6 MB)", 15.0, 50.0, 25.0, 0.99, 1, False, ("grpc",)),
        Subject("resnet50", "ResNet-50 (0.6 MB)", 5.0, 10.0, 50.0, 0.99, 1, False, ("grpc",)),
    )
}


class Measurement(NamedTuple):
    """One cell of one round. `raw` runs the engines themselves, so it has neither stack nor protocol."""

    round: int
    model: str
    stack: str
    row: str
    protocol: str

    @property
    def served(self) -> tuple[int, str, str]:
        """What a server that is started once can measure together."""
        return (self.round, self.model, self.stack)


def measurements(
    rounds: int, stacks: Sequence[str], rows: Collection[str], models: Collection[str], done: Collection[Measurement]
) -> list[Measurement]:
    """What is left to measure, in order: in each round, for each model, the engines alone and then each stack."""
    wanted = []
    for number in range(1, rounds + 1):
        for model in (*SUBJECTS, DEMO_MIX):
            if model in models:
                wanted += [Measurement(number, model, *rest) for rest in _of_model(model, stacks)]
    return [each for each in wanted if each.row in rows and each not in done]


def _of_model(model: str, stacks: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Stack, row and protocol of each measurement: what needs an idle server comes first."""
    if model == DEMO_MIX:
        yield from ((stack, MIX, "grpc") for stack in stacks)
        return
    subject = SUBJECTS[model]
    yield "", RAW, ""
    for stack in stacks:
        for row in (LONE, SHARED, CPU, PEAK):
            protocols = subject.peak_protocols if row == PEAK else PROTOCOLS
            yield from ((stack, row, protocol) for protocol in protocols)
