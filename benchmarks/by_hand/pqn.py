"""The parallelised Q-network as one writes it by hand, going through one rollout for ever."""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.by_hand.parts import Tensors
from benchmarks.by_hand.ppo import PpoLoop


class PqnLoop(PpoLoop):
    """PPO's loop with one network: with the greatest Q-value as a state's value, GAE's returns are the lambda returns."""

    def make(self) -> list[nn.Module]:
        made: list[nn.Module] = [nn.Flatten()]
        width = self.inputs
        for _ in range(self.config.layers):
            made += [nn.Linear(width, self.config.hidden), nn.LayerNorm(self.config.hidden), nn.ReLU(inplace=True)]
            width = self.config.hidden
        return [nn.Sequential(*made, nn.Linear(width, 1 + int(self.spec.action.n)))]  # type: ignore[union-attr]

    @property
    def trace(self) -> float:
        return float(self.config.q_lambda)

    def look(self, rows: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Q-values [N, n], and the greatest [N] of each."""
        observation = rows.index_select(0, index.reshape(-1)).reshape(*index.shape, *rows.shape[1:])
        out = self.modules[0](((observation - self.mean) / self.deviation).clamp(-10.0, 10.0))
        q = out[:, :1] + out[:, 1:] - out[:, 1:].mean(1, keepdim=True)
        return q, q.amax(1)

    def loss(self, rows: Tensor, part: Tensors) -> Tensor:
        q = self.look(rows, part["index"])[0].gather(1, part["action"][:, None]).squeeze(1)
        return 0.5 * (q - part["return"]).square().mean()
