"""All groups of nodes that compute on 8-bit integers, and the DequantizeLinear that nobody needs any more."""

from __future__ import annotations

from veltair.compiler.graph.model_view import Matches, ModelView
from veltair.compiler.patterns.quantised.pools import find_quantised_pools
from veltair.compiler.patterns.quantised.product_match import find_quantised_products
from veltair.compiler.patterns.quantised.quantum import dequantised
from veltair.compiler.patterns.quantised.step_pairs import find_step_pairs
from veltair.compiler.patterns.quantised.step_tables import find_step_tables


def find_quantised_layers(view: ModelView) -> Matches:
    """Products, pools, tables and pairs of integers, and what lies between them."""
    products = find_quantised_products(view)
    matches = products.union(find_quantised_pools(view, products))
    for find in (find_step_tables, find_step_pairs):
        matches = matches.union(find(view, matches))
    inside = {id(node) for node in view.nodes if not matches.is_free(node)}
    for node in view.nodes:
        if node.op_type == "DequantizeLinear" and dequantised(node.output[0], view) is not None:
            users = view.users_of(node.output[0])
            if users and node.output[0] not in view.output_names and all(id(user) in inside for user in users):
                matches.add_inner([node])
    return matches
