"""Peers that send what cannot be used are not read any more.

Bad input costs its sender. Each offence adds to a sender's account, which empties by itself: a peer that errs now and then is
served for ever, one that sends nothing else is put in quarantine within a fraction of a second.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

MOST_OFFENCES = 20.0  # on the account: one more, and the sender is in quarantine
FORGIVEN_PER_SECOND = 2.0
ODDITY = 0.01  # of an offence: what an honest peer may do as often as its credit allows, after a connection broke
NOTICE_SECONDS = 0.05
MOST_SENDERS = 4096  # accounts kept, and senders in quarantine: the oldest are forgotten


class Quarantine:
    """Accounts of offences, and the senders that have had too many: connections, or incarnations of actors."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # (offences, when they were that many)
        self._quarantined: OrderedDict[Hashable, float] = OrderedDict()  # since when

    def offence(self, sender: Hashable, weight: float = 1.0) -> bool:
        """Books an offence. True when it is the one that puts the sender in quarantine."""
        now = self._clock()
        offences, then = self._accounts.pop(sender, (0.0, now))
        offences = max(offences - (now - then) * FORGIVEN_PER_SECOND, 0.0) + weight
        if offences > MOST_OFFENCES:
            return self.put(sender)
        self._accounts[sender] = offences, now
        _forget_oldest(self._accounts)
        return False

    def put(self, sender: Hashable, notified: bool = False) -> bool:
        """From now on nothing of this sender is read; `notified`: nor is it sent the reason. False when it was so before."""
        new = sender not in self._quarantined
        self._quarantined.setdefault(sender, -math.inf if notified else self._clock())
        _forget_oldest(self._quarantined)
        return new

    def holds(self, sender: Hashable) -> bool:
        return sender in self._quarantined

    def write_off(self, sender: Hashable) -> None:
        """A sender in quarantine that does not speak the protocol is not sent the reason."""
        if sender in self._quarantined:
            self._quarantined[sender] = -math.inf

    def notified(self, sender: Hashable) -> bool:
        """Whether a sender in quarantine has had the time to receive the reason."""
        return self._clock() - self._quarantined[sender] > NOTICE_SECONDS

    @property
    def anyone(self) -> bool:
        return bool(self._quarantined)


def _forget_oldest(entries: OrderedDict[Hashable, Any]) -> None:
    while len(entries) > MOST_SENDERS:
        entries.popitem(last=False)
