"""A WAN in a box: proxies that put delay, jitter, bandwidth, losses and partitions between processes of this machine.

`travel.py` says when bytes arrive (pure), `pipe.py` carries one direction of one connection, `link.py` accepts
connections, and `lab.py` has all links in a running loop or in a thread of its own. With `netem`, the kernel does to
packets what `travel.py` says of bytes (`netem_link.py`).
"""

from starspec.lab.lab import Lab, LabThread
from starspec.lab.travel import Traffic

__all__ = ["Lab", "LabThread", "Traffic"]
