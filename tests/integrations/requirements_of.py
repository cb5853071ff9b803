"""Print what an installed package requires, without some: `requirements_of.py PACKAGE LEFT_OUT ...`."""

from __future__ import annotations

import re
import sys
from importlib.metadata import requires

package, *left_out = sys.argv[1:]
for line in requires(package) or ():
    name = re.split(r"[^\w.-]", line)[0].lower()
    if "extra ==" not in line and name not in left_out:
        sys.stdout.write(f"{line}\n")
