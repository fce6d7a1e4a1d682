"""Locales of operators on text, by names that systems have: few containers have "en_US.UTF-8"."""

from __future__ import annotations

import onnx
from onnx import helper

from veltair.compiler.onnx.node_attributes import text_attribute

# ONNX Runtime's default, and one that the C library always has. The case of every letter is the same in both.
DEFAULT, KNOWN = "en_US", "C.UTF-8"


def name_known_locales(graph: onnx.GraphProto) -> bool:
    """Have StringNormalizers of American English ask for a locale that there is, in place. Returns whether some did.

    >>> graph = helper.make_graph([helper.make_node("StringNormalizer", ["x"], ["y"])], "g", [], [])
    >>> name_known_locales(graph), text_attribute(graph.node[0], "locale")
    (True, 'C.UTF-8')
    """
    nodes = [node for node in graph.node if node.op_type == "StringNormalizer"]
    nodes = [node for node in nodes if _language(node) == DEFAULT]
    for node in nodes:
        others = [given for given in node.attribute if given.name != "locale"]
        del node.attribute[:]
        node.attribute.extend([*others, helper.make_attribute("locale", KNOWN)])
    return bool(nodes)


def _language(node: onnx.NodeProto) -> str:
    return text_attribute(node, "locale", DEFAULT).partition(".")[0]
