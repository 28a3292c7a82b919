"""QR-DQN, Dabney et al. 2018 (arXiv:1710.10044): `--algo stranger.qr:QrDqn`. No torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from learner.algorithms.base import FIXED
from learner.algorithms.dqn.algorithm import Dqn
from learner.algorithms.dqn.config import DqnConfig
from transport.experience import ExperienceSpec

if TYPE_CHECKING:
    from learner.updates.base import Runtime


class QrConfig(DqnConfig, frozen=True, forbid_unknown_fields=True):
    """Quantile regression of returns: DQN's options, and how many quantiles."""

    quantiles: Annotated[int, Meta(ge=2, le=512, description="quantiles of the return of each action", extra=FIXED)] = 51


class QrDqn(Dqn):
    Config = QrConfig
    actions = frozenset({"categorical"})  # its targets look at every action: it knows no masks
    figures = {**Dqn.figures, "spread": "spread {:.3g}"}
    config: QrConfig

    def policy(self, spec: ExperienceSpec) -> Any:
        from stranger.qr_torch import policy  # type: ignore[import-not-found]

        return policy(spec, self.config)

    def update(self, spec: ExperienceSpec, runtime: Runtime) -> Any:
        from stranger.qr_torch import QrUpdate

        return QrUpdate(self, spec, runtime)
