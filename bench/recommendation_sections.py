"""The sections of `docs/measurements.md` about recommendation models, their parts, and graphs."""

from __future__ import annotations

from bench import part_tables
from bench.recsys import models
from bench.section import Section, environment_line, read, with_environment


def recommendation_models() -> str:
    found = read("recsys")
    parts = models.table(found["models"]), part_tables.recom_e_gains(found["models"]["recom_e"]["rows"])
    return "\n\n".join([environment_line(found["environment"]), *parts])


SECTIONS = (
    Section(
        "Recommendation models",
        """From features to the score, with tables cut to 1 GB; medians of alternate runs in ms, and in brackets
veltair's time over that engine's (`python -m bench.recsys.models`). Only veltair runs models with raw features
(RECom's E and F, DeepFM, elm-WDL, DIEN on strings) as a whole; the peers get ready-made ids, each a tensor that they
take inside the timing, while veltair's features lie packed; the last column has veltair with the decoding, checking and
packing of a gRPC request. RECom's E has 4.9 GFLOP at 256 rows, so its bar of 6.6x cannot be met in fp32 at this core's
peak. `compile` chooses bfloat16 by itself on a CPU with AMX. Where a second thread gains a peer less than 1.2x, its
figure on two threads is that of two requests at once. The last column and two requests at once wait for the next run on
a quiet machine.""",
        recommendation_models,
    ),
    Section(
        "Parts of recommendation models",
        """Look-ups in large tables beside FBGEMM and torch on the same pages, and beside a loop in C that only reads
the rows, at places known beforehand (`python -m bench.recsys.ember`; bar: 1.0x FBGEMM and 80 % of that loop). FBGEMM's
operator runs on one thread however many there are: its rows on two threads are of one request at a time here.""",
        lambda: part_tables.lookups(read("ember")),
    ),
    Section(
        "Parts of recommendation models, on an EPYC with AVX2",
        """The same on two cores of a Zen 3; a peer that a second thread gains less than 1.2x gets two requests at once
there. FBGEMM 1.9 runs at a tenth of its rate on the Xeon, for a reason that was not found, so torch is the one to
compare with: on one thread it is ahead.""",
        lambda: with_environment("epyc-avx2/ember", part_tables.lookups),
    ),
    Section(
        "Rows in narrower types",
        """The look-ups of the first shape above with rows in fp32, in fp16 and in bytes with scale and bias, on the
EPYC; ms. fp32 is the faster of its two measurements in the file, here and in the table above. The bars: 1.6 and 2.5
times fp32's rate.""",
        lambda: part_tables.storages(read("epyc-avx2/ember")),
    ),
    Section(
        "Graph convolutions",
        """The zoo's GCN in fp32 on a random graph of ogbn-arxiv's size, on two cores of an EPYC with AVX2, beside
torch's sparse CSR products and PyTorch Geometric's GCNConv with the same weights; ms, and in brackets their time over
ours (`python -m bench.kernels.graph_convolution --torch PYTHON`; bar: 1.5x).""",
        lambda: with_environment("epyc-avx2/graph-convolution", part_tables.graph_convolution),
    ),
    Section(
        "Input of a training job",
        """elm-WDL's raw rows to ids in batches of 4,096, on two cores of an EPYC with AVX2, beside a Dataset in Python
and tf.data; the ids of all are equal bit by bit (`python -m bench.recsys.training_input --tensorflow PYTHON`). The
bars are those of AtRec's training steps: 2.04 times TensorFlow, 4.68 times Python.""",
        lambda: with_environment("epyc-avx2/training", part_tables.training_input),
    ),
    Section(
        "Training steps",
        """Forward, backward and update: DIEN at AtRec's widths (512 samples, histories of up to 50 items), and a table
of a million rows alone (512 bags of 100 ids, 32 numbers a row), with row-wise Adagrad in all (`python -m
bench.recsys.training_step`). FBGEMM's row of DIEN is torch's network with FBGEMM's tables. The bars for DIEN: 1.44x
torch, 1.0x FBGEMM.""",
        lambda: with_environment("training-step", part_tables.training_steps),
    ),
    Section(
        "Fusions of AtRec",
        """Each subgraph fused, without the fusion on the same runtime, and in ONNX Runtime, on two cores of an EPYC
with AVX2 (`python -m bench.recsys.atrec --tensorflow PYTHON`). Factors are the other's time over ours. OneHotSum
without fusion, there and in ONNX Runtime, writes one-hot vectors to memory, which nobody would: what its gain is,
scatter-add (ONNX Runtime), bincount (numpy) and TensorFlow's own operators tell.""",
        lambda: with_environment("epyc-avx2/atrec", part_tables.fusions),
    ),
    Section(
        "Feature columns",
        """Columns alone, from raw features to the network's input, on 2 threads of an EPYC with AVX2 (`python -m
bench.recsys.columns`): RECom E's 1000 columns, elm-WDL's 12 history strings (split, hashed, looked up and averaged),
and splitting and hashing alone. ONNX Runtime gets hashed ids ready-made. Factors are the other's time over ours; the
bars are 6.6x and 5x. The peers take a thousand tensors inside the timing; "from the request" has this work in ours too,
with the decoding and checking of a gRPC message.""",
        lambda: with_environment("epyc-avx2/columns", part_tables.feature_columns),
    ),
    Section(
        "Steps of a column, left out",
        """RECom E's 1000 columns on packed features and two threads of an EPYC with AVX2, and how much longer they take
without one of RECom's steps, or without all four (`python -m bench.recsys.column_ablations`). The paper's factors, on a
GPU: 1.22x to 1.49x for needless safety steps, 1.86x for look-ups without a reduction, 11.2x for columns in one kernel,
1.54x for one buffer and 4.47x for merged transfers.""",
        lambda: with_environment("epyc-avx2/column-ablations", part_tables.column_ablations),
    ),
    Section(
        "SavedModels with feature columns",
        """Models that TensorFlow wrote from `tf.feature_column`s and from Keras layers, compiled in fp32 from the
SavedModel alone; two threads of an EPYC with AVX2 (`python -m bench.recsys.saved_models --tensorflow PYTHON`). "tenth"
has a tenth of the columns of RECom's E, 101, and all of its tower; E and F with their towers are not measured yet.
TensorFlow runs the SavedModel's signature, with a tensor for each feature inside its timing; veltair takes packed
features, or an array for each, whose texts are Python's. "Gone" is the part of TensorFlow's operators that no kernel
is left of (paper: 84 % of the columns'). The bar is 6.6x. With so few columns the tower takes most of the time, and
both compute it at about the same rate.""",
        lambda: with_environment("epyc-avx2/saved-models", part_tables.saved_models),
    ),
    Section(
        "A SavedModel with all columns of RECom's E",
        """The same with all 1,001 columns and no tower, from `tf.feature_column`s and from Keras layers, on two
threads of a Xeon whose memory gave one core 7 GB/s (`python -m bench.recsys.saved_models --models recom-e-columns`).
The score is a weighted sum of what the columns give.""",
        lambda: with_environment("xeon-amx/saved-models", part_tables.saved_models),
    ),
)
