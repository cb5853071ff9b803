"""How far to speculate. `LengthPolicy` (`snapshot.py`) is the interface; each policy has a file.

fixed.py            the configured budget, or none in large batches
measured_speed.py   the most expected tokens per second: `expected_speed.py` weighs lengths by what costs were
                    measured (`costs.py` and its three parts), `experiments.py` says what is measured when
hub_lessons.py      what was learnt about one hub, in one object
"""
