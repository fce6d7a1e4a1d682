"""Reads the hash of onnxruntime-extensions, `StringToHashBucketFast`: TensorFlow's Fingerprint64 modulo the buckets.

The operator's domain is `ai.onnx.contrib`; tf2onnx writes it for `tf.strings.to_hash_bucket_fast`. Its inputs are the
texts and the number of buckets, as a constant.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx
from onnx import TensorProto

from veltair.compiler.features.from_onnx.key_sources import KeySource, find_key_source
from veltair.compiler.features.from_onnx.onnx_graph_index import VIEWS, OnnxGraphIndex
from veltair.compiler.onnx.node_attributes import attribute

CONTRIB = "ai.onnx.contrib"
BUCKETS_LIMIT = (1 << 31) - 1  # of a column: its indices are int32
STRONG = "StringToHashBucketStrong"  # TensorFlow's operator, which tf2onnx leaves as it is
HASHES = ("StringToHashBucketFast",)
MOST_BUCKETS = 1 << 24  # behind which operators are carried out on all ids
INTEGERS = (TensorProto.INT64, TensorProto.INT32)


class Hashing(NamedTuple):
    """How values are hashed: to how many buckets, and how.

    >>> Hashing(3).strong_key is None
    True
    """

    buckets: int
    strong_key: tuple[int, int] | None = None  # of SipHash; None: by fingerprints
    remainder: bool = False  # a whole number by its remainder


def find_hashing(node: onnx.NodeProto, graph: OnnxGraphIndex) -> Hashing | None:
    """How a node hashes its first input; None for a node that does not. Raises ModelError for wrong attributes."""
    if is_hash(node):
        return Hashing(read_buckets(node, graph))
    if node.op_type == STRONG:
        buckets, key = int(attribute(node, "num_buckets", 0)), tuple(map(int, attribute(node, "key", [])))
        if len(key) != 2 or min(key) < 0 or not 1 <= buckets <= BUCKETS_LIMIT:
            raise graph.error(
                node, f"{buckets} buckets and a key {list(key)}; expected two numbers that are not below 0"
            )
        return Hashing(buckets, (key[0], key[1]))
    if node.op_type == "Mod" and not attribute(node, "fmod", 0):
        divisor = graph.constant(node.input[1])
        if divisor is not None and divisor.size == 1 and divisor.dtype.kind in "iu":
            buckets = int(divisor.reshape(-1)[0])
            return Hashing(buckets, remainder=True) if 1 <= buckets <= BUCKETS_LIMIT else None
    return None


def is_hash(node: onnx.NodeProto) -> bool:
    return node.domain == CONTRIB and node.op_type in HASHES


def read_buckets(node: onnx.NodeProto, graph: OnnxGraphIndex) -> int:
    """The number of buckets. Raises ModelError unless it is a constant from 1 to 2**31 - 1."""
    value = graph.constant(node.input[1]) if len(node.input) == 2 else None
    if value is None or value.size != 1 or value.dtype.kind not in "iu":
        raise graph.error(node, "expected texts and a constant number of buckets")
    buckets = int(value.reshape(-1)[0])
    if not 1 <= buckets <= BUCKETS_LIMIT:
        raise graph.error(node, f"{buckets} buckets; expected 1 to {BUCKETS_LIMIT}")
    return buckets


def find_hashed(node: onnx.NodeProto, graph: OnnxGraphIndex) -> KeySource:
    """Where the hashed values come from: a text, its tokens, or a whole number that is cast to text.

    Raises ModelError for operators that are not known.
    """
    name = node.input[0]
    while name in graph.producer and graph.producer[name].op_type in VIEWS:
        name = graph.producer[name].input[0]
    cast = graph.producer.get(name)
    if cast is not None and cast.op_type == "Cast" and attribute(cast, "to", 0) == TensorProto.STRING:
        source = find_key_source(cast, graph)
        if source.kind != "int" or graph.type_of(source.name) not in INTEGERS:
            raise graph.error(cast, "makes text for a hash; expected it to do so of whole numbers")
        return source
    source = find_key_source(node, graph)
    if source.kind == "int":
        raise graph.error(node, "hashes numbers; expected text, or whole numbers that are cast to text")
    if source.parts:
        raise graph.error(node, "hashes what StringConcat or StringNormalizer makes; expected an input of the model")
    return source
