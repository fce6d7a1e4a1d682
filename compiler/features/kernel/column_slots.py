"""The row of numbers that the kernel reads for each column, as a structured numpy dtype: `COLUMN_DTYPE`.

`column_table.py` writes the rows: one for each column, and behind all of them one for each part of a text that a
vocabulary is asked for. The code that `IndexEmitter`, `RowLookup` and their neighbours generate reads them: it takes
the table as a matrix of int64 (rows, SLOTS_PER_ROW), and finds the slot of a field by its offset in the dtype. Fields
that no column has both of share a slot.
"""

from __future__ import annotations

import numpy as np

# The slot of each field: what it holds, in which unit. Behind the bar: the module that reads it in generated code.
_SLOTS = {
    # Where the values of a row of the batch are. Starts count values or bytes of one row: times the batch.
    "source_start": 0,  # start of the feature in its packed buffer; of texts, in "ends" | index_emitter, bucketize
    "values_per_row": 1,  # of a feature, or texts of a part | column_values, index_emitter
    "bytes_start": 23,  # texts: start of the feature in "bytes" | index_emitter
    "bytes_room": 24,  # texts: bytes that a row has on average, all its texts together | index_emitter
    # Which of them are there.
    "missing_id": 16,  # integers: the id that is absent | index_emitter
    "drops_missing": 17,  # 1: missing ids, or empty texts, are absent | index_emitter
    "token_limit": 18,  # tokens of a row that are read | index_emitter, sequence_emitter
    "separator": 19,  # tokens: the byte between two of them | index_emitter
    # From a value to an index.
    "buckets": 3,  # hash: their number | index_emitter
    "id_count": 3,  # identity: ids below it are indices | index_emitter
    "reciprocal": 22,  # hash: 2**64 over the buckets, rounded down | index_emitter
    "first_boundary": 2,  # boundaries: the first in "edges" | bucketize
    "boundary_count": 3,  # | bucketize
    "first_slot": 2,  # vocabulary: the first in "slots" | index_emitter
    "slot_count": 3,  # vocabulary: a power of two | index_emitter
    "first_key": 4,  # vocabulary: the first in "keys" | index_emitter
    "key_count": 5,  # vocabulary: indices from it on are buckets of unknown keys | index_emitter
    "default_index": 6,  # of any other key or id; among boundaries of NaN, where -1 is the last bucket | both
    "unknown_buckets": 7,  # vocabulary: buckets for unknown keys; 0: they have the default | index_emitter
    "first_part": 16,  # vocabulary of joined texts: the row of the first part in this table | index_emitter
    "part_count": 22,  # | index_emitter
    "cross_key": 2,  # hash of several features: the fingerprint that it begins with | index_emitter
    "first_cross": 4,  # the row of the first of these features in this table | index_emitter
    "cross_count": 5,  # | index_emitter
    "hash_row": 4,  # hash by a key or a remainder: the row of this table that says how | index_emitter
    "unknown_row": 22,  # vocabulary: the same for unknown keys | index_emitter
    # What happens to an index.
    "first_guard": 14,  # in "guards" | index_emitter, row_lookup
    "guard_count": 15,  # | index_emitter, row_lookup
    "bounds_checked": 13,  # 0: range propagation proved that every index is a row of the table | row_lookup, row_sums
    "first_id": 8,  # ids: what is added to each index | sequence_emitter
    "pad_id": 11,  # ids: the one that stands for none | sequence_emitter
    # The rows of the table, and where the result goes.
    "table_start": 8,  # first item of the table in "tables" | table_rows
    "table_rows": 9,  # 0: the column has no table | row_lookup, row_sums, sequence_emitter
    "fill_row": 11,  # the row that is read where nothing is left | row_lookup, row_sums, sequence_emitter
    "row_width": 10,  # numbers of a row of the table; without a table, of the output | row_lookup, row_sums, …
    "combiner": 20,  # place in COMBINERS | row_sums
    "is_large": 21,  # 1: rows are worth a prefetch | row_lookup, row_sums
    "output_start": 12,  # first number in a row of the output | all that store
    # Rows that say how values are hashed have these. | index_emitter
    "by_remainder": 2,  # 1: a whole number by its remainder; 0: by SipHash
    "first_word": 3,  # of SipHash's key
    "second_word": 4,
    # Rows of parts have these, and of a feature "source_start", "bytes_start" and "bytes_room", too.
    "part_kind": 6,  # place in PART_KINDS | index_emitter
    "text_start": 2,  # constants: first byte in "letters" | index_emitter
    "text_bytes": 3,  # constants | index_emitter
    "letter_case": 7,  # place in letter_case.CASES | index_emitter
    "step_row": 2,  # crosses: the row of this table with the part's boundaries or vocabulary | cross_emitter
    "first_value": 3,  # crosses: the first in "keys" of what stands for each place of these | cross_emitter
    "value_stride": 5,  # crosses: from what stands for one value of a row to what does for the next | cross_emitter
    "part_stride": 4,  # crosses: combinations of the values of the parts behind this one | cross_emitter
}
SLOTS_PER_ROW = max(_SLOTS.values()) + 1
SLOT_BYTES = 8
COLUMN_DTYPE = np.dtype(
    {
        "names": list(_SLOTS),
        "formats": ["<i8"] * len(_SLOTS),
        "offsets": [slot * SLOT_BYTES for slot in _SLOTS.values()],
        "itemsize": SLOTS_PER_ROW * SLOT_BYTES,
    }
)

COMBINERS = ("sum", "mean", "sqrtn")
PART_KINDS = ("own", "other", "constant", "integer", "interval", "number key", "text key", "sparse integer")
NO_VALUE = -(1 << 62)  # among the values of a part of a cross: there is none


def slot_of(field: str) -> int:
    """The place of a field among the int64 numbers of a row.

    >>> slot_of("source_start"), slot_of("bytes_room")
    (0, 24)
    """
    assert COLUMN_DTYPE.fields is not None
    return int(COLUMN_DTYPE.fields[field][1]) // SLOT_BYTES
