"""What the writer and the sampler share."""

from __future__ import annotations

SILENCE_SECONDS = 2.0  # replay answers several times in this time; a longer silence is a fault, and the client greets again
MESSAGES_PER_POLL = 256  # a server that sends without end must not keep a process from its own work


class ReplayRefused(RuntimeError):
    """Replay refuses to serve this process; the message is replay's reason."""
