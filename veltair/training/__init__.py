"""Operators for training recommendation models with PyTorch on CPUs, each with its gradient, in C.

`EmbeddingBag` (with `RowWiseAdagrad` in its backward pass, if wanted), `one_hot_sum`, `concat_sum`, `Gru` and `Augru`;
`embedding_bag`, `gru` and `augru` are the functions behind the modules. They are torch custom operators, so that
autograd and `torch.compile` know them, and standard operators where a model is exported.

`bag_operators` (behind `embedding_bags`), `sums` and `recurrent` register operators and gradients; `export` has what
modules are made of while they are exported; `native_calls` checks what operators are given and calls the kernels in
`native/`, which `thread_pool.c` runs on as many threads as `torch.get_num_threads()` says.
"""

from veltair.training.embedding_bags import EmbeddingBag, RowWiseAdagrad, embedding_bag
from veltair.training.recurrent import Augru, Gru, augru, gru
from veltair.training.sums import concat_sum, one_hot_sum

__all__ = [
    "Augru",
    "EmbeddingBag",
    "Gru",
    "RowWiseAdagrad",
    "augru",
    "concat_sum",
    "embedding_bag",
    "gru",
    "one_hot_sum",
]
