from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from veltair.compiler.graph.layer_spec import Activation, LayerSpec, Point
from veltair.compiler.graph.parameters import LayerParameters
from veltair.compiler.tuning.transfer import nearest_point, parse_workload, transfer_points, workload_distance
from veltair.profiles.records.tuning_records import TuningRecord


@dataclass(frozen=True, slots=True)
class RecordedParameters(LayerParameters):
    """Terms that records of convolutions have."""

    activation: str
    kernel: tuple[int, int]
    strides: tuple[int, int]


def conv(
    size: int,
    channels: int = 64,
    kernel: int = 3,
    stride: int = 1,
    activation: str = "relu",
    op: str = "conv2d",
    dtype: str = "float32",
    residual: bool = False,
) -> str:
    x = Activation("x", dtype, (1, channels, size, size), 16)
    y = Activation("y", dtype, (1, channels, size // stride, size // stride), 16)
    parameters = RecordedParameters(activation, (kernel, kernel), (stride, stride))
    return LayerSpec("l", op, (x, y) if residual else (x,), (y,), {}, 0, parameters=parameters).workload


def records(
    workload: str, points: Sequence[Point], cpu: str = "a cpu", tvm: str = "0.27", slowest: int = 100
) -> list[TuningRecord]:
    """The last point is the fastest."""
    return [TuningRecord(workload, 1, point, (slowest - i,), 64, 8, (), cpu, tvm) for i, point in enumerate(points)]


def nearest(workload: str, candidates: Sequence[str]) -> str:
    return min(candidates, key=lambda other: workload_distance(parse_workload(workload), parse_workload(other)))


TILES: list[Point] = [{"rows": r} for r in (1, 2, 4, 8, 16)]


def test_a_workload_is_taken_apart() -> None:
    workload = parse_workload(conv(14))
    assert (workload.op, workload.attributes["kernel"]) == ("conv2d", "(3,3)")
    assert workload.tensors == (("float32", (1, 64, 14, 14), 16), ("float32", (1, 64, 14, 14), 16))
    assert workload.brief == "[1,64,14,14] to [1,64,14,14] kernel=(3,3)"


def test_structure_counts_before_shapes_and_shapes_before_the_rest() -> None:
    here = conv(14)
    assert nearest(here, [conv(14, kernel=1), conv(112, channels=512)]) == conv(112, channels=512)
    assert nearest(here, [conv(14, stride=2), conv(224)]) == conv(224)
    assert nearest(here, [conv(28), conv(14, activation="none", residual=True)]) == conv(
        14, activation="none", residual=True
    )
    assert nearest(here, [conv(14, activation="none"), conv(14)]) == conv(14)


def test_sizes_are_compared_by_ratio() -> None:
    assert nearest(conv(28), [conv(14), conv(48)]) == conv(48)
    assert nearest(conv(28), [conv(14), conv(60)]) == conv(14)


@given(
    st.tuples(st.sampled_from([1, 3]), st.integers(4, 224), st.integers(1, 512)),
    st.tuples(st.sampled_from([1, 3]), st.integers(4, 224), st.integers(1, 512)),
)
def test_a_distance_is_symmetric_and_zero_at_home(a: tuple[int, int, int], b: tuple[int, int, int]) -> None:
    one, other = (parse_workload(conv(size, channels, kernel)) for kernel, size, channels in (a, b))
    assert workload_distance(one, one) == (0, 0, 0)
    there, back = workload_distance(one, other), workload_distance(other, one)
    assert all(abs(x - y) < 1e-9 for x, y in zip(there, back, strict=True))
    assert (there == (0, 0, 0)) == (a == b)


def test_points_are_as_near_as_their_ratios() -> None:
    points: list[Point] = [{"rows": 4, "mode": "flat"}, {"rows": 64, "mode": "row"}, {"rows": 16, "mode": "flat"}]
    assert nearest_point({"rows": 12, "mode": "flat"}, points) == 2
    assert nearest_point({"rows": 5, "mode": "flat"}, points) == 0
    assert nearest_point({"rows": 5, "mode": "row"}, points) == 1  # a word weighs more than sizes
    assert nearest_point({"rows": 0, "mode": "flat"}, points) == 0


def test_a_coordinate_that_the_other_lacks_is_far() -> None:
    points: list[Point] = [{"m": 4, "tiles": 8}, {"algorithm": "direct", "rows": 1}, {"algorithm": "direct", "rows": 8}]
    assert nearest_point({"rows": 6}, points) == 2


def test_the_best_three_of_the_nearest_are_taken_in_their_order() -> None:
    near, far = conv(28), conv(112)
    recorded = {far: records(far, TILES), near: records(near, [*TILES[1:], TILES[0]])}
    found = transfer_points(conv(14), TILES, recorded)
    assert found is not None
    assert found.source == near
    assert [TILES[i] for i in found.indices] == [{"rows": 1}, {"rows": 16}, {"rows": 8}]


def test_points_that_become_the_same_are_taken_once() -> None:
    source = conv(28)
    found = transfer_points(conv(14), TILES[:2], {source: records(source, TILES)})
    assert found is not None
    assert found.indices == (1,)


def test_too_few_records_other_types_and_other_ops_say_nothing() -> None:
    here = conv(14)
    few, other_type, other_op = conv(28), conv(14, dtype="uint16"), conv(14, op="pool2d")
    recorded = {
        few: [
            *records(few, TILES[:3]),
            TuningRecord(few, 1, {"rows": 9}, (), 64, 8, (), "a cpu", "0.27", "it crashed"),
        ],
        other_type: records(other_type, TILES),
        other_op: records(other_op, TILES),
    }
    assert transfer_points(here, TILES, recorded) is None
    assert transfer_points(here, TILES, {few: records(few, TILES[:4])}) is not None


def test_times_of_two_cpus_are_not_compared() -> None:
    source = conv(28)
    many = records(source, TILES)
    faster_elsewhere = records(source, [{"rows": 999}] * 4, cpu="another", slowest=9)
    found = transfer_points(conv(14), TILES, {source: [*faster_elsewhere, *many]})
    assert found is not None
    assert [TILES[i] for i in found.indices] == [{"rows": 16}, {"rows": 8}, {"rows": 4}]
    assert transfer_points(conv(14), TILES, {source: [*many[:3], *faster_elsewhere[:3]]}) is None


def test_its_own_points_of_an_earlier_space_are_the_nearest() -> None:
    here = conv(14)
    earlier: list[Point] = [{"rows": r, "gone": 1} for r in (1, 2, 4, 8)]
    other = conv(15)
    found = transfer_points(here, TILES, {here: records(here, earlier), other: records(other, TILES)})
    assert found is not None
    assert found.source == here
    assert [TILES[i] for i in found.indices] == [{"rows": 8}, {"rows": 4}, {"rows": 2}]
    # Those that it still has are known already: an interrupted search begins with the same points again.
    found = transfer_points(here, TILES, {here: records(here, TILES), other: records(other, TILES)})
    assert found is not None
    assert found.source == other
