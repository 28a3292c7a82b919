"""`--algorithm.network benchmarks.actors.impala:Impala`: a network for which acting takes more time than most simulators.

The residual network of Espeholt et al. 2018 (arXiv:1802.01561, figure 3, right), by default with twice its channels.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

CHANNELS = (16, 32, 32)
FEATURES = 256


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        layers = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.block = nn.Sequential(*(part for layer in layers for part in (nn.ReLU(), layer)))

    def forward(self, images: Tensor) -> Tensor:
        """[N, C, H, W] -> the same."""
        found: Tensor = images + self.block(images)
        return found


class Impala(nn.Module):
    """Of one image [C, H, W]."""

    def __init__(self, inputs: Mapping[str, tuple[int, ...]], width: int = 2) -> None:
        super().__init__()
        ((self._name, (channels, *_)),) = inputs.items()
        stages: list[nn.Module] = []
        for size in CHANNELS:
            wide = width * size
            stages += [nn.Conv2d(channels, wide, 3, padding=1), nn.MaxPool2d(3, 2, padding=1), Residual(wide), Residual(wide)]
            channels = wide
        self.layers = nn.Sequential(*stages, nn.ReLU(), nn.Flatten(), nn.LazyLinear(FEATURES), nn.ReLU())

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """[N, C, H, W] -> [N, FEATURES]."""
        features: Tensor = self.layers(inputs[self._name])
        return features
