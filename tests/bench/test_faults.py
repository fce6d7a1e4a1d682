"""The page of promises is what the results say."""

from bench import faults


def test_the_page_is_written_from_the_results() -> None:
    assert faults.PAGE.read_text("utf-8") == faults.page(), "run `python -m bench.faults --page`"


def test_each_result_is_of_a_row_that_there_is_and_was_kept() -> None:
    rows = {name.partition("::")[2] for name in faults.names(None)}
    assert faults.read().keys() <= rows
    assert all(found["promise"] and found["outcome"] == "passed" for found in faults.read().values())
