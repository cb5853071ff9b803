"""How far to speculate. `LengthPolicy` (`snapshot.py`) is the interface; each policy has a file.

fixed.py            the configured budget, a table by batch size, or none in large batches
adaedl.py, dsde.py  as the papers have it
goodput.py          the most expected tokens per second: `weighed_round.py` says what lengths would bring and cost,
                    by what was measured (`costs.py` and its three parts); `expected_speed.py` finds the fastest;
                    `trials.py` bounds what is tried in order to learn more
by_request.py       a request's own policy
make.py             the policies that a config names
hub_lessons.py      what was learnt about one hub, in one object
"""
