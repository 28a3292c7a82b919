"""Quarantine: a server stops reading from peers that keep sending invalid messages.

Each offence raises the sender's count, which falls again with time. A peer with an occasional error is always served; a peer that
sends only invalid messages is in quarantine within a fraction of a second.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

MOST_OFFENCES = 20.0  # with more, the sender is in quarantine
FORGIVEN_PER_SECOND = 2.0
ODDITY = 0.01  # weight of what an honest peer may send after a broken connection, as often as its credit allows
NOTICE_SECONDS = 0.05
MOST_SENDERS = 4096  # that have a count, and that are in quarantine; the oldest are forgotten


class Quarantine:
    """Counts offences by sender, and keeps the senders with too many. A sender is a connection or an actor's incarnation."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # (offences, time of the last one)
        self._quarantined: OrderedDict[Hashable, float] = OrderedDict()  # time of the start

    def offence(self, sender: Hashable, weight: float = 1.0) -> bool:
        """Counts an offence. True if it puts the sender in quarantine."""
        now = self._clock()
        offences, then = self._counts.pop(sender, (0.0, now))
        offences = max(offences - (now - then) * FORGIVEN_PER_SECOND, 0.0) + weight
        if offences > MOST_OFFENCES:
            return self.put(sender)
        self._counts[sender] = offences, now
        _forget_oldest(self._counts)
        return False

    def put(self, sender: Hashable, notified: bool = False) -> bool:
        """Puts a sender in quarantine; `notified`: it is not sent the reason. False if it was in quarantine already."""
        new = sender not in self._quarantined
        self._quarantined.setdefault(sender, -math.inf if notified else self._clock())
        _forget_oldest(self._quarantined)
        return new

    def __contains__(self, sender: Hashable) -> bool:
        return sender in self._quarantined

    def __bool__(self) -> bool:
        return bool(self._quarantined)

    def skip_notice(self, sender: Hashable) -> None:
        """A sender in quarantine that does not use the protocol is disconnected without waiting for it to read the reason."""
        if sender in self._quarantined:
            self._quarantined[sender] = -math.inf

    def notified(self, sender: Hashable) -> bool:
        """True if a sender in quarantine has had the time to read the reason."""
        return self._clock() - self._quarantined[sender] > NOTICE_SECONDS


def _forget_oldest(entries: OrderedDict[Hashable, Any]) -> None:
    while len(entries) > MOST_SENDERS:
        entries.popitem(last=False)
