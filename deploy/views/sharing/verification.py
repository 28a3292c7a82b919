"""Whether a card says what its policy does: the document in it, and the comparison with an evaluation that was made anew."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta, Struct

from deploy.errors import ConfigError
from deploy.views.sharing.card import FORMAT, HEAD, VERIFIABLE
from transport.files.documents import Damaged, decode, read_bytes

NORMAL = 1.959964
# Of Student's t, 97.5 %, by degrees of freedom from 1; beyond the last, NORMAL + 2.5 / freedom is 0.3 % too wide at most.
QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
FEWEST = 2  # episodes that have an interval
ROUNDING = 1e-6  # relative


class Evaluation(Struct, frozen=True, kw_only=True):
    by: str
    episodes: Annotated[int, Meta(ge=1, le=1_000_000)]
    return_mean: float
    return_std: float | None = None
    selected: bool = False  # the same episodes selected the policy
    seed: int | None = None
    episode_returns: tuple[float, ...] = ()


class Claim(Struct, frozen=True, kw_only=True):
    """What a card says in its head."""

    format: int
    file: str
    env: str
    algorithm: str
    weights_sha256: str
    policy_version: int
    steps: int | None = None
    seed: int | None = None
    evaluation: Evaluation | None = None


class Verdict(NamedTuple):
    """A mean that was measured anew, beside that of the card."""

    ours: float
    low: float
    high: float

    @property
    def holds(self) -> bool:
        return self.low <= self.ours <= self.high

    def __str__(self) -> str:
        where = "within" if self.holds else "outside of"
        return f"return {self.ours:,.2f}, {where} {self.low:,.2f} to {self.high:,.2f}"


def read_claim(card: Path) -> Claim:
    """Raises ConfigError."""
    try:
        text = read_bytes(card).decode().replace("\r\n", "\n")  # git for Windows may write such lines
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{card} cannot be read: {error}") from error
    lines = text.partition("\n---\n")[0].splitlines()
    found = next((line for line in lines if line.startswith(f"{VERIFIABLE}: ")), None)
    if not text.startswith(HEAD) or found is None:
        raise ConfigError(f"{card} is no card of this version of Headrace: `headrace export RUN FILE` writes one beside FILE")
    try:
        claim = msgspec.convert(decode(found.partition(": ")[2], dict), Claim)  # type: ignore[type-arg]
    except (Damaged, msgspec.ValidationError) as error:
        raise ConfigError(f"{card}: its head is damaged: {error}") from error
    if claim.format != FORMAT:
        raise ConfigError(f"{card} has format {claim.format}, this version of Headrace reads {FORMAT}")
    return claim


def contradiction(claim: Evaluation) -> str:
    """How the figures of a card contradict each other; empty if they do not."""
    returns = np.array(claim.episode_returns)
    if claim.episodes < FEWEST:
        return f"{claim.episodes} episode has no interval"
    if not len(returns):
        return ""
    if len(returns) != claim.episodes:
        return f"it says {claim.episodes:,} episodes and lists {len(returns):,} returns"
    for name, said, found in (
        ("mean", claim.return_mean, returns.mean()),
        ("standard deviation", claim.return_std, returns.std()),
    ):
        if said is None or not abs(said - found) <= ROUNDING * max(1.0, abs(found)):
            return f"it says a {name} of {'nothing' if said is None else f'{said:,.4f}'}, and its returns have {found:,.4f}"
    return ""


def compare(claim: Evaluation, mean: float, std: float, episodes: int) -> Verdict:
    """The mean measured anew lies within the 95 % interval of the card, widened by its own."""
    margin = (
        half_width(claim.return_std or 0.0, claim.episodes)
        + half_width(std, episodes)
        + ROUNDING * max(1.0, abs(claim.return_mean))
    )
    return Verdict(mean, claim.return_mean - margin, claim.return_mean + margin)


def half_width(std: float, episodes: int) -> float:
    """Half of the 95 % interval of a mean by Student's t; `std` as numpy has it, of at least two episodes."""
    freedom = episodes - 1
    quantile = QUANTILES[freedom - 1] if freedom <= len(QUANTILES) else NORMAL + 2.5 / freedom
    return quantile * std * math.sqrt(episodes / freedom) / math.sqrt(episodes)
