"""Who sends what cannot be used, and who is therefore not listened to any more.

Bad input costs its sender. Each offence adds to a sender's account, which empties by itself: a peer that errs now and then is
served for ever, one that sends nothing else is put in quarantine within a fraction of a second.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

MOST_OFFENCES = 20.0  # on the account: one more, and its holder is in quarantine
FORGIVEN_PER_SECOND = 2.0
ODDITY = 0.01  # of an offence: what an honest peer may do as often as its credit allows, after a connection broke
TELLING_SECONDS = 0.05
MOST_SENDERS = 4096  # accounts kept, and senders in quarantine: the oldest are forgotten


class Conduct:
    """Accounts of senders: connections, or lives of actors."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Nobody has done anything."""
        self._clock = clock
        self._accounts: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # (offences, when they were that many)
        self._quarantined: OrderedDict[Hashable, float] = OrderedDict()  # since when

    def offence(self, sender: Hashable, weight: float = 1.0) -> bool:
        """Books an offence. True when it is the one that puts the sender in quarantine."""
        now = self._clock()
        offences, then = self._accounts.pop(sender, (0.0, now))
        offences = max(offences - (now - then) * FORGIVEN_PER_SECOND, 0.0) + weight
        if offences > MOST_OFFENCES:
            return self.quarantine(sender)
        self._accounts[sender] = offences, now
        _forget_oldest(self._accounts)
        return False

    def quarantine(self, sender: Hashable, told: bool = False) -> bool:
        """From now on nothing of this sender is read; `told`: nor need it hear why. False when it was so before."""
        new = sender not in self._quarantined
        self._quarantined.setdefault(sender, -math.inf if told else self._clock())
        _forget_oldest(self._quarantined)
        return new

    def quarantined(self, sender: Hashable) -> bool:
        """Whether this sender is in quarantine."""
        return sender in self._quarantined

    def write_off(self, sender: Hashable) -> None:
        """One in quarantine that does not speak the protocol need not hear why."""
        if sender in self._quarantined:
            self._quarantined[sender] = -math.inf

    def told(self, sender: Hashable) -> bool:
        """Whether somebody in quarantine has been there for long enough to have heard of it."""
        return self._clock() - self._quarantined[sender] > TELLING_SECONDS

    @property
    def anyone(self) -> bool:
        """Whether somebody is."""
        return bool(self._quarantined)


def _forget_oldest(entries: OrderedDict[Hashable, Any]) -> None:
    while len(entries) > MOST_SENDERS:
        entries.popitem(last=False)
