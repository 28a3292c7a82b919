"""Writes the file of figures: all cases, or those that are named."""

from __future__ import annotations

import sys

from tests.golden import figures
from tests.golden.compute import CASES, figures_of

names = sys.argv[1:] or list(CASES)
known = figures.read() if sys.argv[1:] else {}
if known and known["processor"] != figures.processor():
    sys.exit("the file was written on another kind of processor, or by other versions: write all cases")
known.pop("processor", None)
figures.write(figures.processor(), known | {name: figures_of(name) for name in names})
