"""Which design space serves which kind of layer."""

from __future__ import annotations

from veltair.compiler.features.kernel.columns_kernel import ColumnsSpace
from veltair.compiler.graph.layer_spec import Space
from veltair.compiler.kernels.attention.attention import Attention
from veltair.compiler.kernels.attention.head_moves import MergeHeads, SplitHeads
from veltair.compiler.kernels.conv.conv2d import Conv2d
from veltair.compiler.kernels.conv.conv2d_bf16 import Conv2dBf16
from veltair.compiler.kernels.conv.depthwise import DepthwiseConv2d
from veltair.compiler.kernels.fallback.onnxruntime_space import OnnxRuntimeSpace
from veltair.compiler.kernels.feature_maps.channel_norms import L2Normalize, Lrn
from veltair.compiler.kernels.feature_maps.concat import Concat
from veltair.compiler.kernels.feature_maps.elementwise import Elementwise
from veltair.compiler.kernels.feature_maps.group_norm import GroupNorm
from veltair.compiler.kernels.feature_maps.layout_transform import (
    ChannelsFirst,
    ChannelsLast,
    Copy,
    DepthToSpace,
    ToBlocked,
    ToPlain,
)
from veltair.compiler.kernels.feature_maps.picked_pixels import PickedPixels
from veltair.compiler.kernels.feature_maps.pool import GlobalAveragePool, Pool2d
from veltair.compiler.kernels.feature_maps.resize import Resize
from veltair.compiler.kernels.feature_maps.squeeze_excite import SqueezeExcite
from veltair.compiler.kernels.generic.generic import Generic
from veltair.compiler.kernels.int8.channel_windows import QuantisedDepthwise, QuantisedMaxPool
from veltair.compiler.kernels.int8.dynamic_quantise import DynamicQuantise
from veltair.compiler.kernels.int8.joined_channels import JoinedChannels
from veltair.compiler.kernels.int8.plane_means import PlaneMeans
from veltair.compiler.kernels.int8.products import QuantisedProduct
from veltair.compiler.kernels.int8.reorder import QuantisedReorder
from veltair.compiler.kernels.int8.step_pairs import StepPairs
from veltair.compiler.kernels.int8.step_table import StepTable
from veltair.compiler.kernels.matmul.batched_matmul import BatchedMatmul
from veltair.compiler.kernels.matmul.batched_matmul_bf16 import BatchedMatmulBf16
from veltair.compiler.kernels.matmul.matmul import Matmul
from veltair.compiler.kernels.matmul.matmul_bf16 import MatmulBf16
from veltair.compiler.kernels.recurrent.projected_recurrent import ProjectedRecurrent
from veltair.compiler.kernels.recurrent.recurrent import Recurrent
from veltair.compiler.kernels.rows.block_gather import BlockGather
from veltair.compiler.kernels.rows.cast import Cast
from veltair.compiler.kernels.rows.concat_rows import ConcatRows
from veltair.compiler.kernels.rows.concat_sum import ConcatSum
from veltair.compiler.kernels.rows.constant_rows import ConstantRows
from veltair.compiler.kernels.rows.embedding_bag import EmbeddingBag
from veltair.compiler.kernels.rows.layer_norm import LayerNorm
from veltair.compiler.kernels.rows.lookups import Lookups
from veltair.compiler.kernels.rows.one_hot_sum import OneHotSum
from veltair.compiler.kernels.rows.spmm import Spmm
from veltair.compiler.kernels.rows.token_embedding import TokenEmbedding
from veltair.compiler.kernels.rows.transpose import Transpose
from veltair.compiler.kernels.rows.trees import Trees
from veltair.compiler.stitch.stitched_space import StitchedSpace

SPACES: dict[str, Space] = {
    "conv2d": Conv2d(),
    "conv2d_bf16": Conv2dBf16(),
    "depthwise_conv2d": DepthwiseConv2d(),
    "matmul": Matmul(),
    "matmul_bf16": MatmulBf16(),
    "matmul_int8": QuantisedProduct(),
    "conv2d_int8": QuantisedProduct(),
    "depthwise_int8": QuantisedDepthwise(),
    "max_pool_int8": QuantisedMaxPool(),
    "mean_int8": PlaneMeans(),
    **dict.fromkeys(("quantise", "dequantise", "reorder"), QuantisedReorder()),
    "dynamic_quantise": DynamicQuantise(),
    "table_int8": StepTable(),
    "pair_int8": StepPairs(),
    "concat_int8": JoinedChannels(),
    "batched_matmul": BatchedMatmul(),
    "batched_matmul_bf16": BatchedMatmulBf16(),
    "attention": Attention(),
    "split_heads": SplitHeads(),
    "merge_heads": MergeHeads(),
    "layer_norm": LayerNorm(),
    "embedding": TokenEmbedding(),
    "cast": Cast(),
    "constant_rows": ConstantRows(),
    "embedding_bag": EmbeddingBag(),
    "lookups": Lookups(),
    "spmm": Spmm(),
    "block_gather": BlockGather(),
    "recurrent": Recurrent(),
    "projected_recurrent": ProjectedRecurrent(),
    "one_hot_sum": OneHotSum(),
    "trees": Trees(),
    "pool2d": Pool2d(),
    "global_average_pool": GlobalAveragePool(),
    "squeeze_excite": SqueezeExcite(),
    "elementwise": Elementwise(),
    "concat": Concat(),
    "concat_rows": ConcatRows(),
    "concat_sum": ConcatSum(),
    "transpose": Transpose(),
    "group_norm": GroupNorm(),
    "resize": Resize(),
    "lrn": Lrn(),
    "l2_normalize": L2Normalize(),
    "channels_last": ChannelsLast(),
    "channels_first": ChannelsFirst(),
    "depth_to_space": DepthToSpace(),
    "pick_pixels": PickedPixels(),
    "to_blocked": ToBlocked(),
    "to_plain": ToPlain(),
    "copy": Copy(),
    "columns": ColumnsSpace(),
    "generic": Generic(),
    "onnxruntime": OnnxRuntimeSpace(),
    "stitched": StitchedSpace(),
}
