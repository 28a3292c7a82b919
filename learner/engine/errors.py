"""Numbers that are not finite: steps by them are skipped and counted, so numpy need not warn of them."""

from __future__ import annotations

import numpy as np

quietly = np.errstate(over="ignore", invalid="ignore", divide="ignore")  # a decorator
