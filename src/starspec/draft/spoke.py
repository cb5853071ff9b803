"""What the hub keeps of one target besides its sessions: how far tags had come that it does not hold."""

from __future__ import annotations

from starspec.draft.session import DraftLimits
from starspec.ids import Tag, TargetId
from starspec.wire.session import Role, TagSession

MAX_PAST_TAGS = 1024


class Spoke:
    """One target, as long as its session with the hub lasts.

    A link outlives its draft session for a while: a late message of a closed tag is then known to be late, and
    does not open the tag again.
    """

    def __init__(self, target_id: TargetId, limits: DraftLimits) -> None:
        self.target_id = target_id
        self.limits = limits  # of its sessions
        self._past: dict[Tag, TagSession] = {}  # remembered last comes last

    def recall(self, tag: Tag) -> TagSession:
        """The link of a tag that has no session; a fresh one, remembered from now on, if the tag is unknown."""
        link = self._past.get(tag)
        if link is None:
            link = TagSession(Role.HUB, tag)
            self.remember(link)
        return link

    def remember(self, link: TagSession) -> None:
        """Keep a link for `recall`. Effects: forgets the one remembered longest ago, beyond MAX_PAST_TAGS."""
        self._past.pop(link.tag, None)
        self._past[link.tag] = link
        if len(self._past) > MAX_PAST_TAGS:
            del self._past[next(iter(self._past))]
