"""Where a text ends: what a target's configs may say of it."""

import pytest

from eagle3_interop.schemas.findings import Usage
from eagle3_interop.validators.target.stops import stop_ids


@pytest.mark.parametrize(
    ("named", "ids"),
    [((2,), (2,)), (([2, 3],), (2, 3)), ((None, 7), (7,)), ((5, 7), (5,)), ((0,), (0,))],
)
def test_the_first_config_that_names_an_end_counts(named, ids):
    assert stop_ids(*named) == ids


@pytest.mark.parametrize("named", ["</s>", ["</s>"], [], True, -1, 2.0, {"id": 2}])
def test_an_end_that_is_no_token_id_would_never_be_met_and_is_wrong_usage(named):
    with pytest.raises(Usage, match="no token id"):
        stop_ids(named)


def test_a_target_without_an_end_is_wrong_usage():
    with pytest.raises(Usage, match="names no end-of-sequence token"):
        stop_ids(None, None)
