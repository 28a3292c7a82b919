from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.networks import q_network
from learner.networks.base import PolicyModule
from learner.weights import checkpoint
from learner.weights.checkpoint import CheckpointError, Checkpoints, epoch_of, load_into, pack, read, unpack, write, write_listed
from learner.weights.manifest import contradiction, read_manifest
from tests.learner.examples import image, make_observation, make_spec, vector


def make_network(hidden: int = 8) -> PolicyModule:
    return q_network(make_spec(image(shape=(8, 8)), vector()), DqnConfig(hidden=hidden, network="nature_batchnorm"))


def test_what_is_written_is_read_and_acts_the_same(tmp_path: Path) -> None:
    first, second = make_network(), make_network()
    observation = make_observation([image(shape=(8, 8)), vector()], (5, 1))
    first(observation)  # moves the running statistics, which have to travel too
    first = first.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    path = tmp_path / "latest.safetensors"
    write(path, first.state_dict(), {"policy_version": "12"})
    weights, metadata = read(path)
    assert metadata == {"policy_version": "12"}
    load_into(second, weights)
    torch.testing.assert_close(second.eval()(observation), first.eval()(observation))
    assert os.listdir(tmp_path) == ["latest.safetensors"]


def test_packed_weights_survive_the_wire_bit_for_bit() -> None:
    first, second = make_network(), make_network()
    storages = [parameter.data_ptr() for parameter in second.parameters()]
    load_into(second, unpack(pack(first.state_dict())))
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    assert storages == [parameter.data_ptr() for parameter in second.parameters()]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "latest.safetensors"
    write(path, {"x": np.zeros(3, np.float32)}, {"policy_version": "1"})

    def no_space(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        write(path, {"x": np.ones(3, np.float32)}, {"policy_version": "2"})
    assert read(path)[1] == {"policy_version": "1"}
    assert os.listdir(tmp_path) == ["latest.safetensors"]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no names of open files")
@pytest.mark.skipif(os.name != "posix", reason="Windows cannot fsync folders")
def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_manifest_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(file: int) -> None:
        calls.append(f"sync {Path(os.readlink(f'/proc/self/fd/{file}')).name.split('.safetensors')[0].split('.json')[0]}")
        fsync(file)

    def renamed(old: Path, new: Path) -> None:
        calls.append(f"name {new.stem}")
        replace(old, new)

    monkeypatch.setattr("os.fsync", synced)
    monkeypatch.setattr("os.replace", renamed)
    folder = tmp_path / "folder"
    folder.mkdir()
    write_listed(folder / "latest.safetensors", {"x": np.zeros(3, np.float32)}, {"policy_version": "1"})
    expected = ["sync .latest", "name latest", "sync folder", "sync .manifest", "name manifest", "sync folder"]
    assert calls == expected
    calls.clear()
    write_listed(folder / "latest.safetensors", {"x": np.ones(3, np.float32)}, {"policy_version": "2"})
    assert calls == expected[3:] + expected, "what is about to be replaced leaves the manifest first"
    entry = (read_manifest(folder) or {})["latest.safetensors"]
    assert (entry.policy_version, entry.epoch, contradiction(folder / "latest.safetensors", entry)) == (2, None, "")


def test_a_missing_truncated_damaged_foreign_or_endless_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "latest.safetensors"
    write(path, make_network().state_dict(), {})
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[-5] ^= 1

    def refused(content: bytes) -> str:
        path.write_bytes(content)
        with pytest.raises(CheckpointError) as refusal:
            read(path)
        message = str(refusal.value)
        assert message.startswith(str(path)) and "\n" not in message
        return message

    for length in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        assert "truncated" in refused(whole[:length])
    assert "checksum does not match" in refused(bytes(damaged))
    assert "not a safetensors file" in refused(b"\x80\x04\x95 a pickle, say" * 100)
    assert "not a Headrace checkpoint" in refused(safetensors.numpy.save({"x": np.zeros(3, np.float32)}))
    endless = {"x": np.array([0.0, np.nan], np.float32)}
    with pytest.raises(CheckpointError, match="x is not finite"):
        write(path, endless, {})
    metadata = {checkpoint.FORMAT_KEY: checkpoint.CHECKPOINT_FORMAT}
    digest = checkpoint.digest_of(endless, metadata)
    assert "x is not finite" in refused(safetensors.numpy.save(endless, metadata | {checkpoint.DIGEST_KEY: digest}))
    path.unlink()
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        read(path)


@pytest.mark.parametrize(("metadata", "found"), [({}, "'1'"), ({checkpoint.FORMAT_KEY: "3"}, "'3'")])
def test_a_checkpoint_of_another_format_is_refused_in_one_line_that_says_what_to_do(
    tmp_path: Path, metadata: dict[str, str], found: str
) -> None:
    path, weights = tmp_path / "latest.safetensors", {"x": np.zeros(3, np.float32)}
    path.write_bytes(safetensors.numpy.save(weights, metadata | {checkpoint.DIGEST_KEY: checkpoint.digest_of(weights, metadata)}))
    with pytest.raises(CheckpointError, match="use the version that wrote it") as refusal:
        read(path)
    assert f"has format {found}" in str(refusal.value) and "\n" not in str(refusal.value)


def test_the_format_is_not_among_the_metadata_of_a_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "latest.safetensors", {"x": np.zeros(3, np.float32)}, {"epoch": "7"})
    assert read(tmp_path / "latest.safetensors")[1] == {"epoch": "7"}


def test_hostile_or_broken_payloads_are_refused() -> None:
    payload = pack(make_network().state_dict())
    for broken in (b"", payload[:-1], payload[: len(payload) // 2], payload + b"x", b"\xff" * 64, b"cposix\nsystem\n"):
        with pytest.raises(CheckpointError):
            unpack(broken)
    with pytest.raises(CheckpointError, match="not finite"):
        unpack(safetensors.numpy.save({"x": np.array([np.inf], np.float32)}))


def test_weights_of_another_network_are_refused_and_change_nothing() -> None:
    network = make_network()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    good = unpack(pack(make_network().state_dict()))
    name = "head.0.weight"
    cases = [
        (unpack(pack(make_network(hidden=9).state_dict())), "not float32"),
        ({key: value for key, value in good.items() if key != name}, f"lack {name}"),
        ({**good, "stranger": good[name]}, "unknown stranger"),
        ({**good, name: good[name].astype(np.float64)}, "float64"),
    ]
    for weights, reason in cases:
        with pytest.raises(CheckpointError, match=reason):
            load_into(network, weights)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


@pytest.mark.parametrize("every", [1, 25])
def test_older_checkpoints_stay_spread_over_the_run_however_long_it_is(tmp_path: Path, every: int) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3, older=5)
    for number in range(1, 61):
        checkpoints.write(number * every, {"x": np.zeros(1, np.float32)}, {"epoch": str(number * every)})
        epochs = sorted(map(epoch_of, checkpoints.paths()))
        assert [epoch // every for epoch in epochs[-3:]] == list(range(max(number - 2, 1), number + 1)), "the newest stay"
        assert len(epochs) == min(number, 8)
        assert max(np.diff([0, *epochs])) <= max(number / 3, 1) * every, "none is missing for longer than a third of the run"
    manifest = read_manifest(tmp_path)
    assert manifest is not None and sorted(manifest) == sorted(path.name for path in checkpoints.paths())
