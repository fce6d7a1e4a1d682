"""Which design space serves which kind of anchor."""

from __future__ import annotations

from veltair.compiler.generic import Generic
from veltair.compiler.ir import Space
from veltair.compiler.kernels.concat import Concat
from veltair.compiler.kernels.conv2d import Conv2d, DepthwiseConv2d
from veltair.compiler.kernels.conv2d_amx import Conv2dAmx
from veltair.compiler.kernels.embedding_bag import EmbeddingBag
from veltair.compiler.kernels.layout import ChannelsLast, Copy, ToBlocked, ToPlain
from veltair.compiler.kernels.matmul import Matmul
from veltair.compiler.kernels.normalize import L2Normalize, Lrn
from veltair.compiler.kernels.pool import GlobalAveragePool, Pool2d
from veltair.compiler.kernels.spatial import Elementwise
from veltair.compiler.kernels.squeeze_excite import SqueezeExcite

SPACES: dict[str, Space] = {
    "conv2d": Conv2d(),
    "conv2d_amx": Conv2dAmx(),
    "depthwise_conv2d": DepthwiseConv2d(),
    "matmul": Matmul(),
    "embedding_bag": EmbeddingBag(),
    "pool2d": Pool2d(),
    "global_average_pool": GlobalAveragePool(),
    "squeeze_excite": SqueezeExcite(),
    "elementwise": Elementwise(),
    "concat": Concat(),
    "lrn": Lrn(),
    "l2_normalize": L2Normalize(),
    "channels_last": ChannelsLast(),
    "to_blocked": ToBlocked(),
    "to_plain": ToPlain(),
    "copy": Copy(),
    "generic": Generic(),
}
