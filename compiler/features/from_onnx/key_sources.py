"""Finds where the keys of an encoder come from in an ONNX graph: inputs, split, joined, or in another letter case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec
import onnx
from onnx import TensorProto

from veltair.compiler.features.feature_description import TextPart
from veltair.compiler.features.from_onnx.onnx_graph_index import VIEWS, OnnxGraphIndex
from veltair.compiler.onnx.node_attributes import attribute, text_attribute
from veltair.errors import ModelError

CASES: dict[str, Literal["lower", "upper"]] = {"StringLower": "lower", "StringUpper": "upper"}  # TensorFlow's operators
MOST_PARTS = 256  # of the text that an encoder reads
ASCII_LOCALES, UNICODE_LOCALES = ("C", "POSIX"), ("en_US", "en_US.UTF-8", "C.UTF-8")


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where a column's values come from: an input of the model, split into tokens or not.

    >>> KeySource("age", "int").parts
    ()
    """

    name: str
    kind: Literal["int", "float", "string", "tokens"]
    separator: str = ","
    split: onnx.NodeProto | None = None
    parts: tuple[TextPart, ...] = ()


def find_key_source(node: onnx.NodeProto, graph: OnnxGraphIndex) -> KeySource:
    """The source of an encoder's keys. Raises ModelError for operators that are not known."""
    split = _find_split(node.input[0], graph)
    if split is None:
        parts = _find_parts(node.input[0], node, graph)
    else:
        inner = _find_parts(split.input[0], node, graph)
        if len(inner) > 1:
            raise graph.error(split, "splits what StringConcat makes; expected an input of the model")
        parts = inner
    names = [part.feature for part in parts if part.feature is not None]
    if not names:
        raise graph.error(node, "reads a constant; expected an input of the model")
    name = names[0]
    text = graph.type_of(name) == TensorProto.STRING
    plain = len(parts) == 1 and parts[0].case is None
    ranks = {graph.rows(n) for n in names}
    if len(ranks) > 1:
        raise graph.error(node, f"joins texts of different shapes: {', '.join(names)}")
    if not text:
        return KeySource(name, "int")
    if split is None:
        return KeySource(name, "string", parts=() if plain else parts)
    separator = text_attribute(split, "delimiter")
    if len(separator) != 1 or not separator.isascii() or attribute(split, "maxsplit", None) is not None:
        raise graph.error(split, "expected a delimiter of one ASCII character, and no maxsplit")
    if not plain and separator.isalpha():
        raise graph.error(split, f"splits at the letter {separator!r}, whose case is changed before")
    return KeySource(name, "tokens", separator, split, () if plain else parts)


def _find_split(name: str, graph: OnnxGraphIndex) -> onnx.NodeProto | None:
    """The StringSplit whose tokens are encoded."""
    while name in graph.producer and graph.producer[name].op_type in VIEWS:
        name = graph.producer[name].input[0]
    node = graph.producer.get(name)
    return node if node is not None and node.op_type == "StringSplit" and name == node.output[0] else None


def _find_parts(name: str, user: onnx.NodeProto, graph: OnnxGraphIndex) -> tuple[TextPart, ...]:
    """The texts that one tensor of texts is made of, in their order, back to inputs and constants."""
    found, left = list[TextPart](), [(name, user, TextPart())]
    while left:
        name, user, part = left.pop()
        if len(found) + len(left) >= MOST_PARTS:
            raise graph.error(user, f"reads what more than {MOST_PARTS} texts are joined to")
        constant, node = graph.text(name), graph.producer.get(name)
        if constant is not None:
            found.append(_constant_part(constant, user, part, graph))
        elif node is not None and node.op_type in VIEWS:
            left.append((node.input[0], user, part))
        elif node is not None and node.op_type == "StringConcat":
            left += [(given, node, part) for given in reversed(node.input)]
        elif node is not None and node.op_type == "StringNormalizer":
            inner = _read_case(node, graph)
            if part.case is not None and inner.case is not None:
                raise graph.error(node, "the case is changed twice")
            left.append((node.input[0], node, part if inner.case is None else inner))
        elif node is not None:
            expected = "StringSplit, StringConcat and StringNormalizer at most"
            raise graph.error(node, f"stands before {user.op_type} {user.name!r}; expected {expected}")
        elif name not in graph.inputs:
            raise graph.error(user, f"reads {name!r}, which is no input of the model")
        elif graph.rows(name) is None:
            expected = "expected one value a row, with a symbolic batch"
            raise ModelError(f"{graph.path}: input {name!r} has shape {graph.shape(name)}; {expected}")
        else:
            found.append(msgspec.structs.replace(part, feature=name))
    return tuple(found)


def _constant_part(text: str, user: onnx.NodeProto, part: TextPart, graph: OnnxGraphIndex) -> TextPart:
    """A constant in the case that it gets behind."""
    if part.unicode and not text.isascii():
        raise graph.error(user, f"changes the case of {text!r}; expected ASCII")
    cased = text.encode()  # bytes change ASCII letters alone
    cased = cased.lower() if part.case == "lower" else cased.upper() if part.case == "upper" else cased
    return TextPart(text=cased.decode())


class Cleaning(NamedTuple):
    """What a node does to a text: its ASCII letters in one case, or no white space around it.

    >>> Cleaning("lower").strips
    False
    """

    case: Literal["lower", "upper"] | None = None
    strips: bool = False


def read_cleaning(node: onnx.NodeProto) -> Cleaning | None:
    """What a node does to texts; None for any other node, and where letters beyond ASCII would change."""
    if node.op_type == "StringStrip":
        return Cleaning(strips=True)
    if node.op_type in CASES:
        return Cleaning(CASES[node.op_type]) if not attribute(node, "encoding", b"") else None
    if node.op_type != "StringNormalizer" or attribute(node, "stopwords", []):
        return None
    action = attribute(node, "case_change_action", b"NONE")
    if action == b"NONE":
        return Cleaning()
    ascii_only = text_attribute(node, "locale") in ASCII_LOCALES
    return Cleaning("lower" if action == b"LOWER" else "upper") if ascii_only else None


def _read_case(node: onnx.NodeProto, graph: OnnxGraphIndex) -> TextPart:
    """What a StringNormalizer does to its texts."""
    if attribute(node, "stopwords", []):
        raise graph.error(node, "stopwords take rows out of the batch; expected none")
    action = text_attribute(node, "case_change_action", "NONE")
    case: Literal["lower", "upper"] | None = {"LOWER": "lower", "UPPER": "upper"}.get(action)  # type: ignore[assignment]
    locale = text_attribute(node, "locale") or "en_US"
    if locale not in (*ASCII_LOCALES, *UNICODE_LOCALES):
        known = ", ".join((*ASCII_LOCALES, *UNICODE_LOCALES))
        raise graph.error(node, f"letters of locale {locale!r} are not known; expected one of {known}")
    return TextPart(case=case, unicode=case is not None and locale in UNICODE_LOCALES)
