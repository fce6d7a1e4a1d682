"""Writes `docs/measurements.md` from the committed results: `python -m bench.tables` (`--print` only prints it).

Every figure in a table, and every figure in the text that is in a result file, comes from `bench/results`. The text
around the tables, which says what was measured and how, is typed here.
"""

from __future__ import annotations

import argparse
from statistics import median

from bench import int8, part_tables, recommendation_sections, simulator_sections, trees
from bench.coverage import table as coverage
from bench.kernels import networks
from bench.paths import ROOT
from bench.section import Section, environment_line, read, with_environment
from bench.serving import fronts, mix, model_loads, overload, short_floods
from bench.serving.way import summary as way

PAGE = ROOT / "docs" / "measurements.md"


def kernels_by_network() -> str:
    return f"{environment_line(read('kernels/resnet50')['environment'])}\n\n{networks.tables()}"


def mix_table(name: str) -> str:
    return with_environment(name, mix.table)


def epyc_mix() -> str:
    """The mix on the EPYC, and the medians of the rounds with the present policy."""
    found = read("epyc/mix-vision")
    medians = []
    for stack in ("veltair, veltair", "OpenVINO, throughput hint, 2 at a time"):
        late = [s for s in found["searches"] if s["stack"] == stack and s["round"] > 3]
        by_percentile = {p: median(s["peak_qps"] or 0.0 for s in late if s["percentile"] == p) for p in (0.95, 0.99)}
        medians.append(f"{stack}: " + ", ".join(f"{qps:.0f} at {p:.0%}" for p, qps in by_percentile.items()))
    return f"{mix_table('epyc/mix-vision')}\n\nQPS in the last three rounds: {'; '.join(medians)}."


def tight_mix() -> str:
    searches = read("mix-vision-tight")["searches"]
    rounds = [f"{search['peak_qps']:.0f}" for search in searches if search["percentile"] == 0.95]
    return f"{mix_table('mix-vision-tight')}\n\nQPS at 95% by round: {', '.join(rounds)}."


SECTIONS = (
    Section(
        "Kernels by network",
        """Whole networks of the zoo on 2 cores of a Xeon, at batch 1 where nothing else is said, beside ONNX Runtime
and OpenVINO in alternate runs; medians (`python -m bench.kernels.networks`). OpenVINO's default precision on a CPU
with AMX is bfloat16, so it stands beside our bfloat16. The cosine compares bfloat16 logits with those of ONNX Runtime
in fp32.""",
        kernels_by_network,
    ),
    Section(
        "Serving: three vision networks, 2 cores of a Xeon",
        """The daemon, and its peers behind the same front end, serve ResNet-50 (target 40 ms), Inception v1 (25 ms)
and SqueezeNet (15 ms) over gRPC; the load generator runs on the same 2 cores. The table has the greatest load at which
each network keeps 95 % (and, for `veltair` and the best peer, 99 %) of its queries in target. Targets are 3.5 times
what a query alone takes over gRPC's own library. Figures are medians of three rounds, of ONNX Runtime one round; at 95
% `veltair` and the best peer ran in turn, the others and 99 % in an earlier hour (`python -m bench.serving.mix
scenarios/vision.toml`). The bar is five times the best peer, which is more than two cores have: layers and the way of
queries through client and front end would take 116 % of their time even if SqueezeNet took none.""",
        lambda: mix_table("mix-vision"),
    ),
    Section(
        "Serving: the same networks, on another Xeon with AMX",
        """The same since both cores are busy while queries wait ([record
117](decisions/117-a-slow-core-is-better-than-none.md)): `veltair` in two rounds, and then the best peers in one
(`python -m bench.serving.mix scenarios/vision.toml --policies veltair`).""",
        lambda: mix_table("xeon-amx/mix-vision"),
    ),
    Section(
        "Serving under the paper's own targets",
        """Under the targets of 15 and 10 ms (`scenarios/vision-tight.toml`) two cores have little slack over gRPC: on
one of them, ResNet-50 alone takes more than half of its target. Medians of two rounds, which differ (`python -m
bench.serving.mix scenarios/vision-tight.toml --policies veltair --stacks veltair --rounds 2`). At 99 % a single late
query decides, since each load is held for 5 s and has few queries.""",
        tight_mix,
    ),
    Section(
        "Serving: the same networks, 2 cores of an EPYC",
        """Zen 5 has bfloat16 in AVX-512's dot products and no AMX; there the targets are 2.9 to 4.4 times the solo
times. Medians with loads held for 15 s (`python -m bench.serving.mix scenarios/vision.toml --seconds 15 --results
bench/results/epyc`); `veltair` and OpenVINO's throughput hint in six rounds in turn, the others in three of them;
OpenVINO one at a time and ONNX Runtime are from an earlier hour with loads of 5 s, ONNX Runtime in one round. The host
is shared: its speed changes by the minute (the same kernels take 1.0 to 1.3 times as long), and for seconds at a time
both cores take 1.6 to 1.9 times as long. The last three rounds are the only ones with the present policy; their
medians stand below the table. OpenVINO computes in bfloat16 there as well and as close to the cores' peak (ResNet-50
in 20.2 / 10.5 ms on one core / two, veltair in 18.6 / 9.6), so the gain is the scheduler's. Five times the best peer
would take 90 % of both cores' time.""",
        epyc_mix,
    ),
    Section(
        "Serving: vision beside recommendation, 2 cores of a Xeon",
        """Two networks beside two recommendation models whose queries have 164 rows in the middle: ResNet-50 (100 ms),
MobileNet-V2 (50 ms), DLRM RM2 (400 ms) and Wide & Deep (25 ms). Measured in the same way (`python -m bench.serving.mix
scenarios/recsys.toml --rounds 1`), in one round, in which the client was late for some of the queries at most loads:
it has the same cores. The bar is five times the best peer.""",
        lambda: mix_table("mix-recsys"),
    ),
    Section(
        "Serving: vision beside recommendation, 2 cores of an EPYC with AVX2",
        """The same in fp32, with targets three times as long, since no stack holds the others there at any load. One
round, beside the two best peers (`python -m bench.serving.mix scenarios/recsys.toml --slower 3 --rounds 1`).""",
        lambda: mix_table("epyc-avx2/mix-recsys-slower-3"),
    ),
    *recommendation_sections.SECTIONS,
    Section(
        "Stitched kernels",
        """Memory-bound subgraphs in stitched kernels beside TVM's own schedules, the plain one and dlight's (`python
-m bench.kernels.stitching`; bar: 2x the better of the two).""",
        part_tables.stitching,
    ),
    Section(
        "Models with stitched kernels",
        """Whole models in fp32 as they are compiled, without stitching and in ONNX Runtime, on both cores; and the
memory-bound parts of each, every part as often as the model has it, beside ONNX Runtime and XLA (`python -m
bench.kernels.stitched_models --tensorflow PYTHON`). The bars: XLA's time at least 1.39 times ours with at most 38 % of
its kernels (FusionStitching), and no model slower than without stitching.""",
        lambda: with_environment("epyc/stitched-models", part_tables.stitched_models),
    ),
    Section(
        "From layer to layer",
        """The cost of a layer that does nothing but be parallel, of a first launch after a pause, and of the CPU time
that other threads burn after a block; medians in us (`python -m bench.kernels.layer_launch`).""",
        part_tables.layer_launch,
    ),
    Section(
        "The way of a query, beside Triton",
        """What serving costs around the model, on 2 cores of a Xeon without AMX: this daemon, its version before the
I/O threads in C, and NVIDIA's Triton with ONNX Runtime (fp32) and with OpenVINO (its default precision) behind its
Python backend, in turn; medians of three rounds, of peaks two (`python -m bench.serving.way`). The host is shared: it
takes up to a seventh of the cores' time away, for milliseconds at once, so ratios tell more than times. Peaks of the
networks at 99 % and the demo's mix are not shown, because such pauses decide them. A lone client asks one query after
the other with NVIDIA's client library; CPU times are those of the server's processes; the load generator runs on the
same cores, and its own CPU time is shown. Triton's engines run DLRM on one thread and the networks on all.""",
        lambda: with_environment("way", way.markdown),
    ),
    Section(
        "The way of a query, on a Xeon with AMX",
        """The same on two cores that have AMX, in one round (`python -m bench.serving.way --rounds 1`), of the demo's
mix this daemon alone. An idle core of this machine is slow to begin: after a pause of a second Python takes seven to
fourteen times as long for a twentieth of a millisecond of work. So CPU times at a few queries a second are mostly those
of what a server does each second without any: of 15 and 5 queries a second of the networks, and less so of 200 of DLRM.
That slowness also comes and goes: the mix's mean latency was 2.4 times the models' own an hour before, with a [bound of
0.8](decisions/21-default-policy.md) where 0.65 is now.""",
        lambda: with_environment("xeon-amx/way", way.markdown),
    ),
    Section(
        "The way of a query, with short queries that wait for one another",
        """Queries that are shorter than a decision wait for the lent worker: DLRM alone, on two cores of a Zen 3, which
has AVX2 alone (`python -m bench.serving.way --rounds 1 --only dlrm --rows lone,cpu,peak --triton-python PATH`), this
daemon and then Triton within a quarter of an hour.""",
        lambda: with_environment("epyc-avx2/way", way.markdown),
    ),
    Section(
        "The way of a query, on an EPYC",
        """The same on two cores of a Zen 4, in one round (`python -m bench.serving.way --rounds 1`, without the demo's
mix). Peaks are of DLRM alone.""",
        lambda: with_environment("epyc/way", way.markdown),
    ),
    Section(
        overload.TITLE,
        overload.TEXT,
        lambda: with_environment("epyc/overload", lambda found: overload.markdown(found["runs"])),
    ),
    Section(
        short_floods.TITLE,
        short_floods.TEXT,
        lambda: with_environment("epyc-avx2/short-floods", lambda found: short_floods.markdown(found["runs"])),
    ),
    Section(
        f"{short_floods.TITLE}, on a Xeon with AMX",
        """The same with tenants that are served [in turn](decisions/112-tenants-of-short-queries-in-turn.md), one run,
on two cores of a Xeon whose memory gave one core 7 GB/s. The peak, from which the load is reckoned, differs five times
from run to run here: the load generator and the I/O thread have the cores before the worker.""",
        lambda: with_environment("xeon-amx/short-floods", lambda found: short_floods.markdown(found["runs"])),
    ),
    Section(int8.TITLE, int8.TEXT, lambda: with_environment("int8", int8.table)),
    Section(
        f"{int8.TITLE}, on an EPYC",
        "The same without AMX, before [record 94](decisions/94-int8-tiles.md): with VNNI and other epilogues.",
        lambda: with_environment("epyc/int8", int8.table),
    ),
    Section(trees.TITLE, trees.TEXT, lambda: with_environment("trees", trees.table)),
    Section(coverage.TITLE, coverage.TEXT, lambda: with_environment("coverage", coverage.table)),
    Section(
        "Networks of images and of sequences",
        """The same at the sizes of their use, with their times, on a Xeon with AMX: networks that give images or
signals again ([record 120](decisions/120-products-in-other-spellings.md)) and recurrent ones ([record
123](decisions/123-recurrences-of-many-units.md); `python -m bench.coverage --networks
'images.*.dynamo,sequences.*.torchscript' --times --quick`).""",
        lambda: with_environment("xeon-amx/coverage", coverage.table),
    ),
    Section(
        "Loading beside serving",
        """MobileNet-V2 at a steady rate over gRPC, alone and while a model of a gigabyte is loaded and unloaded
again and again (`python -m bench.serving.model_loads SERVED LOADED`). The bar is 1.1 times the 99th percentile.""",
        lambda: with_environment("epyc/model-loads", model_loads.markdown),
    ),
    Section(
        "What the front side carries",
        """CPU time a query of I/O threads and engine, for queries that are not batched to models that compute next to
nothing, over gRPC, on the same Xeon without AMX (`python -m bench.serving.fronts`). A second I/O thread leaves a
query's CPU time as it is, so more threads carry more; the one engine is what limits queries that are not batched. The
bars are 50,000 queries of 7 KB a second and 5,000 of 0.6 MB.""",
        lambda: with_environment("fronts", fronts.table),
    ),
    *simulator_sections.SECTIONS,
)


def page() -> str:
    """The whole page as Markdown."""
    parts = [
        "# Measurements",
        "<!-- Written by `python -m bench.tables` from bench/results. Edit that module, not this page. -->",
        "All figures are of virtual machines with 2 cores of a Xeon with AVX-512 and AMX, unless a section names "
        "another machine; environments are shown as they were recorded with the results. `python -m bench.run` "
        "measures all of them again (after `make demo`); `--list` shows with which commands.",
    ]
    for section in SECTIONS:
        parts += [f"## {section.title}", section.text, section.table()]
    return "\n\n".join(parts) + "\n"


def write() -> None:
    """Writes the page."""
    PAGE.write_text(page(), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", help="print the page instead of writing it")
    print(page(), end="") if parser.parse_args().print else write()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
