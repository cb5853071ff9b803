"""The state of a hub: connecting until it is found first, and lost only after that."""

from starspec.policy.liveness import HubLiveness


def test_a_hub_that_was_never_found_is_connecting_and_not_lost() -> None:
    hub = HubLiveness(now=10.0)
    assert (hub.state, hub.state_s(15.0)) == ("connecting", 5.0)
    hub.find(20.0)
    assert (hub.state, hub.state_s(22.0)) == ("connected", 2.0)
    hub.lose(30.0)
    assert (hub.state, hub.state_s(31.5)) == ("lost", 1.5)
    hub.find(40.0)
    assert (hub.state, hub.state_s(40.0)) == ("connected", 0.0)
