"""Which queries are admitted, and when they are due."""

import pytest
from scheduler_builders import make_tenant, simple_profile

from veltair.errors import RefusalReason
from veltair.scheduler.admission import Admission
from veltair.scheduler.costs.profile_catalogue import ProfileCatalogue
from veltair.scheduler.events import RejectQuery
from veltair.types import Query


def admit(query, planned_share=1.0):
    catalogue = ProfileCatalogue({"m": [simple_profile((30, 16), batch=1), simple_profile((60, 40), batch=3)]}, 2)
    return Admission([make_tenant(100)], catalogue, planned_share).admit(query)


@pytest.mark.parametrize(
    ("deadline_ns", "share", "due_ns"),
    [
        (None, 1.0, 1100),
        (None, 0.8, 1080),
        (1050, 1.0, 1050),
        (1050, 0.8, 1040),
        (1100, 1.0, 1100),
        (5000, 0.8, 1080),  # later than the target: the target counts
        (900, 1.0, 900),
    ],
)
def test_it_is_due_by_the_target_or_by_its_own_deadline_whichever_comes_first(deadline_ns, share, due_ns):
    active = admit(Query(1, "a", 1000, deadline_ns), share)
    assert (active.due_ns, active.qos_ns) == (due_ns, round(100 * share))
    assert active.query.deadline_ns == deadline_ns


def test_the_profile_is_the_smallest_that_holds_the_batch():
    assert [admit(Query(1, "a", 0, batch=batch)).costs.profile.batch for batch in (1, 2, 3)] == [1, 2, 3]
    assert admit(Query(1, "a", 0, batch=4)) == RejectQuery(1, RefusalReason.BATCH)


def test_a_lone_block_is_a_query_on_one_core_or_nothing():
    catalogue = ProfileCatalogue({"m": [simple_profile((30, 16), batch=1), simple_profile((60, 40), batch=3)]}, 2)
    admission = Admission([make_tenant(100)], catalogue, 1.0)
    block = admission.lone_block("a", 1)
    assert (block.start, block.stop, block.cores, block.predicted_ns) == (0, 1, 1, 30)
    assert admission.lone_block("a", 2).predicted_ns == 45  # between those that were profiled
    assert admission.lone_block("a", 4) is None  # no profile holds it
    assert admission.lone_block("b", 1) is None
    admission.remove("a")
    assert admission.lone_block("a", 1) is None
