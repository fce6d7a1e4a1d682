from __future__ import annotations

from pathlib import Path

import pytest

from veltair.errors import ConfigError
from veltair.simulation.machine_model import machine_model
from veltair.simulation.machine_model.machine_model import load_machine_model, machine_names, parse_machine_model

PAPERS = "threadripper-3990x"


def text() -> str:
    folder = Path(machine_model.__file__).parent / "data" / "machines"
    return (folder / f"{PAPERS}.toml").read_text("utf-8")


@pytest.mark.parametrize("name", machine_names())
def test_what_ships_can_be_loaded(name: str) -> None:
    model = load_machine_model(name)
    assert model.name == name
    assert len(model.machine().cores) == model.cores


def test_the_papers_machine_is_that_of_section_5() -> None:
    model = load_machine_model(PAPERS)
    assert (model.cores, model.domain_cores, model.clock_ghz) == (64, 4, 2.9)
    assert model.domains(64) * model.l3_bytes == 256 * 2**20
    assert model.vector_flops == pytest.approx(2.9 * 32)  # two multiply-adds of eight floats a cycle
    assert model.machine(6).domains == ((0, 1, 2, 3), (4, 5))


def test_memory_answers_later_under_load_where_it_is_known() -> None:
    assert [load_machine_model(PAPERS).memory_latency(used) for used in (0, 0.95, 1, 6)] == pytest.approx(
        [1, (1.396 + 1.871) / 2, 1.871, 1.871]
    )
    assert load_machine_model("xeon-2").memory_latency(1.0) == 1.0


def test_any_file_can_be_a_machine(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text().replace(f'name = "{PAPERS}"', 'name = "mine"'))
    assert load_machine_model(str(path)).name == "mine"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("value = 64", "value = 0", "cores: expected a value above 0"),
        ("value = 64", "value = 63.5", "cores: expected a whole number, got 63.5"),
        ("value = 64", 'value = "many"', "cores.value: expected `float`, got `str`"),
        ("value = 0.764", "value = 1.2", "vector_efficiency: expected at most 1, got 1.2"),
        ("value = 220000", "value = 20000", "spawn_mean_ns: a log-normal mean is not below its median"),
        ("value = [1, ", "value = [0.5, ", "loaded_latency.value[0]: expected `float` >= 1.0"),
        ("[cores]", "[sockets]", "unknown field `sockets`"),
        ("[cores]", "[cores", "line"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(before: str, after: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"^m\.toml: ") as caught:
        parse_machine_model(text().replace(before, after, 1), "m.toml")
    assert said in str(caught.value)


def test_a_value_without_its_source_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cores: .*`source`"):
        parse_machine_model("name = 'a'\ntitle = 'a'\n[cores]\nvalue = 1\n", "m.toml")


@pytest.mark.parametrize("name", ["nothing", "nothing.toml"])
def test_an_unknown_machine_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="nothing"):
        load_machine_model(name)


@pytest.mark.parametrize("cores", [0, 65])
def test_cores_that_a_machine_does_not_have(cores: int) -> None:
    with pytest.raises(ConfigError, match="expected 1 to 64 cores"):
        load_machine_model(PAPERS).machine(cores)
