"""Caches that fit into a machine's memory alone, but not together."""

import pytest

from starspec.cache.memory import check_together
from starspec.errors import ConfigError


def test_the_caches_of_target_and_draft_are_added_up() -> None:
    check_together(60, 40, 100)
    with pytest.raises(ConfigError, match=r"target and draft take 60 and 41 bytes, together more than .* of 100 bytes"):
        check_together(60, 41, 100)
    with pytest.raises(ConfigError, match=r"of 3 targets and draft take 3 times 20 and 41 bytes, together more than"):
        check_together(20, 41, 100, num_targets=3)
    with pytest.raises(ConfigError, match=r"of 3 targets take 3 times 34 bytes, together .*, the number of targets or"):
        check_together(34, 0, 100, num_targets=3)
