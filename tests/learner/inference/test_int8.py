"""int8 against what it rounds, and against the network that it acts for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.common.recording import load_frames
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.ppo.config import LOG_PROB, PpoConfig
from learner.algorithms.sac.config import SacConfig
from learner.devices.capabilities import DeviceError
from learner.inference import int8 as quantised
from learner.inference.int8 import QuantisedBody, check, supports
from learner.weights.checkpoint import load_into
from tests.learner.acting import Acting, algorithm_of
from tests.learner.examples import image, make_observation, make_spec, vector
from transport.experience import Categorical, Columns, Continuous, ExperienceSpec, observed

try:
    check()
    REASON = ""
except DeviceError as error:
    REASON = str(error)
needs_int8 = pytest.mark.skipif(bool(REASON), reason=REASON)
SIGNED = observed("image", (40, 40), "|u1", 2 / 255, -1.0)  # no byte of it is exactly 0
SPECS = {
    "frames": make_spec(image(), stack=4),
    "small colours": make_spec(image(shape=(3, 13, 13))),
    "colours and vectors": make_spec(image(shape=(3, 40, 44)), vector(), stack=2),
    "two images": ExperienceSpec((image(), vector(), observed("left", (40, 40), "|u1", 1 / 255, 0.0)), Categorical(3), 16, 4),
    "signed": ExperienceSpec((SIGNED,), Categorical(3), 16, 3),
    "no byte near 0": ExperienceSpec((observed("image", (40, 40), "|u1", 0.01, 1.0),), Categorical(3), 16, 3),
    "small and signed": ExperienceSpec((observed("image", (13, 13), "|u1", 2 / 255, -1.0),), Categorical(3), 16, 3),
}
KINDS: dict[str, Any] = {"dqn": DqnConfig, "ppo": PpoConfig}


def made(spec: ExperienceSpec, config: DqnConfig | PpoConfig, seed: int = 1) -> Any:
    torch.manual_seed(seed)
    network = algorithm_of(config).policy(spec)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None and module.running_var is not None
                module.running_mean.normal_(0, 0.2)
                module.running_var.uniform_(0.5, 2)
    return network.eval()


def arrays(spec: ExperienceSpec, count: int) -> Columns:
    return {name: rows.numpy() for name, rows in make_observation(spec.fields, (count, spec.stack)).items()}


def tensors(columns: Columns) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(rows) for name, rows in columns.items()}


def frames(count: int) -> Columns:
    recording = load_frames()
    rows = np.flatnonzero(recording.valid)[:: len(recording) // count][:count]
    return {"image": recording.observation[recording.stack(rows, 4)]}


@needs_int8
@pytest.mark.parametrize("algorithm", KINDS)
@pytest.mark.parametrize("name", SPECS)
def test_what_goes_into_the_heads_is_nearly_the_networks(name: str, algorithm: str) -> None:
    spec = SPECS[name]
    network, seen = made(spec, KINDS[algorithm](hidden=64)), tensors(arrays(spec, 9))
    assert supports(network.body)
    body = QuantisedBody(network.body)
    with torch.inference_mode():
        expected, found = network.body(seen), body(seen)
        again = body({name: rows[3:5] for name, rows in seen.items()})
    assert found.dtype == torch.float32 and found.shape == expected.shape and (found >= 0).all()
    scale = expected.square().mean().sqrt()
    error = ((found - expected).square().mean().sqrt() / scale).item()
    assert 0 < error < 0.04, f"{error:.4f} of what it rounds"
    torch.testing.assert_close(again, found[3:5], atol=1e-5, rtol=1e-5)  # a row does not depend on those beside it


@needs_int8
@pytest.mark.parametrize("network", ["nature", "nature_batchnorm"])
def test_on_real_frames_q_values_are_within_four_hundredths_and_follow_weights_when_told(network: str) -> None:
    config, spec = DqnConfig(network=network), make_spec(image(shape=(84, 84)), stack=4, n=7)
    followed, newer, seen = made(spec, config), made(spec, config, seed=2), frames(40)
    policy, exact = Acting(spec, config, followed, "int8"), Acting(spec, config, newer)
    stale = policy.answers(seen)
    load_into(followed, {name: value.numpy() for name, value in newer.state_dict().items()})
    expected = exact.answers(seen)
    spread = np.abs(expected).max()
    assert not np.allclose(stale, expected, atol=0.04 * spread)
    policy.refresh()
    found = policy.answers(seen)
    assert found.dtype == np.float32 and not np.array_equal(found, expected), "it did not act in int8"
    np.testing.assert_allclose(found, expected, atol=0.04 * spread)


@needs_int8
def test_a_layer_adds_up_exactly_what_was_rounded() -> None:
    torch.manual_seed(3)
    for layer, scale, zero in ((nn.Conv2d(4, 32, 8, 4), 1 / 255, 0), (nn.Conv2d(4, 32, 3, 2, 1), 0.01, 100)):
        seen = torch.randint(0, 256, (3, 4, 40, 40), dtype=torch.uint8)
        convolution = quantised._Convolution(layer, layer.weight.detach(), layer.bias.detach(), scale, zero)  # type: ignore[union-attr]
        rounded, scales, _ = quantised._rounded(layer.weight.detach())
        assert rounded.abs().max() == 127 and rounded.abs().flatten(1).amax(1).min() == 127
        with torch.inference_mode():
            values, weight = (seen.double() - zero) * scale, rounded.double() * scales[:, None, None, None]
            bias = layer.bias.double()  # type: ignore[union-attr]
            expected = nn.functional.conv2d(values, weight, bias, layer.stride, layer.padding).relu()  # type: ignore[arg-type]
            given, step = convolution(seen, 1.0)
        assert ((given * step) - expected).abs().max() < 0.501 * step, "more is lost than by rounding once"
        assert step * 255 == pytest.approx(1.2 * expected.max().item(), rel=1e-4)


@needs_int8
def test_brighter_frames_than_any_before_are_not_cut_off() -> None:
    spec = SPECS["frames"]
    network = made(spec, DqnConfig(hidden=64))
    body, used = QuantisedBody(network.body), QuantisedBody(network.body)
    bright = torch.full((2, 4, 84, 84), 255, dtype=torch.uint8)
    with torch.inference_mode():
        for level in (0, 3, 40):  # all black first: there is no range to begin with
            dark = {"image": torch.full_like(bright, level)}
            torch.testing.assert_close(used(dark), network.body(dark), atol=0.05, rtol=0.05)
        torch.testing.assert_close(used({"image": bright}), body({"image": bright}), atol=1e-4, rtol=1e-4)


@needs_int8
@pytest.mark.parametrize("mode", ["explore", "greedy", "random"])
def test_every_kind_of_policy_acts_in_int8(mode: Any) -> None:
    with_image, reals = make_spec(image(), vector(), stack=4), Continuous((-1.0, 0.0), (1.0, 3.0))
    vectors = ExperienceSpec((vector(),), reals, 16)
    drawn = ExperienceSpec(with_image.fields, reals, 16, 4)
    cases: list[tuple[ExperienceSpec, Any]] = [
        (with_image, DqnConfig(hidden=32)),
        (with_image, PpoConfig(hidden=32)),
        (drawn, PpoConfig(hidden=32)),
        (make_spec(vector()), DqnConfig(hidden=32)),
        (vectors, PpoConfig(hidden=32)),
        (vectors, SacConfig(hidden=32)),
    ]
    for spec, config in cases:
        policy = Acting(spec, config, precision="int8")
        policy.refresh()
        acted = policy.act(arrays(spec, 5), mode)
        assert len(acted.action) == 5 and np.isfinite(acted.action).all()


@needs_int8
def test_ppo_tells_the_probability_with_which_it_acted_not_the_learners() -> None:
    spec = make_spec(image(), vector(), stack=4)
    policy, seen = Acting(spec, PpoConfig(hidden=64), made(spec, PpoConfig(hidden=64)), "int8"), arrays(spec, 6)
    acted, logits = policy.act(seen, "explore"), policy.answers(seen)
    own = torch.log_softmax(torch.from_numpy(logits), 1).numpy()[np.arange(6), acted.action]
    np.testing.assert_allclose(acted.columns[LOG_PROB], own, atol=1e-6)


@needs_int8
def test_an_image_whose_edges_cannot_be_padded_is_refused() -> None:
    spec = ExperienceSpec((observed("image", (13, 13), "|u1", 0.01, 1.0),), Categorical(3), 16)
    with pytest.raises(DeviceError, match="no byte of this image means 0"):
        Acting(spec, DqnConfig(hidden=8), precision="int8")


@pytest.mark.parametrize("reason", ["this torch has no int8 kernels", "no VNNI"])
def test_where_there_is_no_int8_it_is_refused_in_one_line(reason: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(quantised, "missing", lambda: reason)
    with pytest.raises(DeviceError, match=f"precision int8 is not available on cpu: {reason}; use auto"):
        Acting(make_spec(image()), DqnConfig(hidden=8), precision="int8")
    assert quantised.main() == 2
    assert capsys.readouterr().out.count("\n") == 1


def test_a_torch_without_the_kernels_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "_Convolution", lambda *arguments: torch.ops.onednn.no_such_kernel)
    assert "no int8 kernels" in quantised.missing.__wrapped__()


def test_products_that_overflow_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    short = torch.full((1, 16, 4, 4), 32_767.0)
    monkeypatch.setattr(quantised._Convolution, "__init__", lambda self, *arguments: None)
    monkeypatch.setattr(quantised._Convolution, "_run", lambda self, *arguments: short)
    assert "32 bits" in quantised.missing.__wrapped__()
