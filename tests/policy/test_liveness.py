"""The state of a hub: connecting until it is found first, and lost only after that; and the pauses of a lost one."""

from starspec.policy.liveness import MAX_PAUSE_S, MIN_PAUSE_S, RELAPSE_S, HubLiveness


def test_a_hub_that_was_never_found_is_connecting_and_not_lost() -> None:
    hub = HubLiveness(now=10.0)
    assert (hub.state, hub.state_s(15.0)) == ("connecting", 5.0)
    hub.find(20.0)
    assert (hub.state, hub.state_s(22.0)) == ("connected", 2.0)
    hub.lose(30.0)
    assert (hub.state, hub.state_s(31.5)) == ("lost", 1.5)
    hub.find(40.0)
    assert (hub.state, hub.state_s(40.0)) == ("connected", 0.0)


def pause_after(hub: HubLiveness, found_s: float, lost_s: float) -> float:
    """Seconds for which a hub that is found, and then lost, is not waited for; in eighths of a second."""
    hub.find(found_s)
    hub.lose(lost_s)
    return next(num / 8 for num in range(1000) if hub.may_be_found(lost_s + num / 8))


def test_a_hub_that_is_soon_lost_again_is_left_alone_for_longer() -> None:
    hub = HubLiveness(now=0.0)
    assert [hub.may_be_found(0.125), hub.may_be_found(MIN_PAUSE_S)] == [False, True]
    soon = [pause_after(hub, at_s, at_s + RELAPSE_S - 1.0) for at_s in (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)]
    assert soon == [0.5, 1.0, 2.0, 4.0, MAX_PAUSE_S, MAX_PAUSE_S]
    assert pause_after(hub, 70.0, 70.0 + RELAPSE_S) == MIN_PAUSE_S
    assert pause_after(hub, 80.0, 81.0) == 2 * MIN_PAUSE_S
