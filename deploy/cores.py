"""How many cores a run may use, and to which ones its processes are bound."""

from __future__ import annotations

import math
from contextlib import suppress

import psutil

from transport.system import core_count, own_cores

STARTED_CORES, STARTED_COUNT = own_cores(), core_count()  # of this process, before it was bound to fewer
LEAST_CORES = 0.1  # with fewer the processes would hardly get ready
LOOK_SECONDS = 0.2  # in which the cores are found that other programs use least


def allowed(setting: str | float, own: int | None = None) -> float:
    """The cores of `deploy.cores`: `60%` of the `own` ones, which are all that this process was started with, or a number of
    them; all for an empty text. Raises ValueError."""
    own = STARTED_COUNT if own is None else own
    text = str(setting).strip()
    if not text:
        return float(own)
    share, number = text.endswith("%"), float(text.removesuffix("%"))
    if not (0 < number <= 100 if share else LEAST_CORES <= number < math.inf):
        raise ValueError(text)
    return round(min(max(own * number / 100 if share else number, LEAST_CORES), own), 3)


def bind(cores: float) -> None:
    """Binds this process, and those that it starts from now on, to as few cores as have room for `cores`, those that are least
    busy now. Does nothing where the system has no such bond."""
    wanted, own = math.ceil(cores), own_cores()
    if wanted >= core_count():  # a quota of processor time needs no bond: others would choose the same cores
        return
    busy = dict(enumerate(psutil.cpu_percent(LOOK_SECONDS, percpu=True)))
    chosen = sorted(own, key=lambda core: (round(busy.get(core, 0.0), -1), core))[:wanted]
    with suppress(OSError, AttributeError):  # macOS has none
        psutil.Process().cpu_affinity(chosen)


def unbind() -> None:
    """Undoes `bind`."""
    with suppress(OSError, AttributeError):
        psutil.Process().cpu_affinity(STARTED_CORES)
