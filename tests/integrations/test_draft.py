"""N-grams without a hub: drafts of those that have one, and nothing of those that are gone."""

import numpy as np

from starspec.integrations.vllm.draft import Draft, DraftRequest, LocalNgramDrafts
from starspec.integrations.vllm.rows import KnownRequest


def request(*token_ids: int) -> KnownRequest:
    return KnownRequest(np.array(token_ids, np.int32), len(token_ids))


def test_a_request_that_repeats_itself_has_a_draft_and_no_other() -> None:
    repeating, new, unasked = request(1, 2, 3, 1, 2), request(1, 2, 3, 4), request(1, 2, 1, 2)
    wanted = [DraftRequest(repeating, 3), DraftRequest(new, 3), DraftRequest(unasked, 0)]
    assert LocalNgramDrafts(2, 4).draft(wanted) == {repeating: Draft([3, 1, 2], 3)}


def test_what_was_taken_in_stays_until_the_request_is_gone() -> None:
    lookup, each = LocalNgramDrafts(2, 4), request(1, 2, 3, 1, 2)
    lookup.draft([DraftRequest(each, 1)])
    each.extend(np.array([3, 1], np.int32))
    assert lookup.draft([DraftRequest(each, 2)]) == {each: Draft([2, 3], 2)}
    lookup.forget([each, request(7)])
    assert not lookup._lookup.lengths
