"""elm-WDL: Wide & Deep on Ele.me's logs as AtRec runs it, with twelve history strings split at ';'.

AtRec says what goes in (13 tables of 100,000 rows of 16, 12 histories) and that 396 values reach the tower; the fields
are the data set's. They add up so: 14 hashed fields and 10 hashed histories, which share tables with the fields that
they are histories of, are 24 rows of 16; 10 numbers and 2 histories of numbers are the other 12.
"""

from __future__ import annotations

from collections.abc import Mapping

from veltair.zoo.recommendation.description_text import DescriptionEntries, DescriptionEntry
from veltair.zoo.recommendation.recommender import SCORE, RecommenderGraph, RecommenderSpec
from veltair.zoo.recommendation.table_sizes import EmbeddingTable

ROWS, DIM, TOWER = 100_000, 16, (1024, 512, 256, 64)
REPEATED = (
    *("shop_id", "item_id", "category_1_id", "merge_standard_food_id", "brand_id", "shop_aoi_id", "shop_geohash_6"),
    *("hours", "time_type", "weekdays"),
)
FIELDS = {name: name for name in (*REPEATED, "user_id", "city_id")}  # field -> table
FIELDS |= {"shop_geohash_12": "geohash12", "geohash12": "geohash12"}
NUMBERS = (
    *("gender", "avg_price", "is_supervip", "ctr_30", "ord_30", "total_amt_30"),
    *("rank_7", "rank_30", "rank_90", "times"),
)
AMOUNTS = ("price_list", "timediff_list")
WIDTH = DIM * (len(FIELDS) + len(REPEATED)) + len(NUMBERS) + len(AMOUNTS)
RMS = 0.3  # of the columns' output
HISTORY_BYTES = 1024  # room for a history: some hundred tokens


def _build(g: RecommenderGraph) -> tuple[str, int]:
    """x float32 (n, 396) -> probability float32 (n, 1): a tower, and a sum of all values beside it."""
    x = g.floats("x", WIDTH)
    deep = g.linear(g.tower(x, "deep", (WIDTH, *TOWER), RMS), "deep.score", TOWER[-1], 1)
    wide = g.linear(x, "wide", WIDTH, 1)
    return g.node("Sigmoid", [g.node("Add", [deep, wide], "logit")], SCORE), 1


def _describe(tables: Mapping[str, EmbeddingTable]) -> DescriptionEntries:
    history: DescriptionEntry = {"kind": "tokens", "separator": ";", "max_bytes": HISTORY_BYTES}
    features: list[DescriptionEntry] = [
        *({"name": name, "kind": "string", "max_bytes": 16} for name in FIELDS),
        *({"name": f"{name}_list", **history} for name in REPEATED),
        *({"name": name, "kind": "float"} for name in NUMBERS),
        *({"name": name, **history} for name in AMOUNTS),
    ]
    columns: list[DescriptionEntry] = [
        *({"feature": name, "hash": tables[table].rows, "table": table} for name, table in FIELDS.items()),
        *(
            {"feature": f"{name}_list", "hash": tables[name].rows, "combiner": "mean", "table": name}
            for name in REPEATED
        ),
        *({"feature": name} for name in NUMBERS),
        *({"feature": name, "number": True, "combiner": "mean"} for name in AMOUNTS),
    ]
    joined: DescriptionEntry = {"name": "x", "columns": [str(column["feature"]) for column in columns]}
    return {"features": features, "columns": columns, "inputs": [joined]}


ELM_WDL = RecommenderSpec(
    "elm_wdl",
    tuple(EmbeddingTable(name, ROWS, DIM) for name in dict.fromkeys(FIELDS.values())),
    _build,
    qos_ms=100,
    max_batch=4096,
    describe=_describe,
)
