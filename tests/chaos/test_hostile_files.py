"""S1, S15: pickles and other hostile content, sent to every port and written into every file that is loaded: nothing runs."""

from __future__ import annotations

import io
import json
import os
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import safetensors.numpy
import torch
from torch import nn

from actors.evaluation.evaluator import Best
from deploy import runs
from deploy.config.layers import load_run_config
from deploy.errors import ConfigError
from learner.algorithms.dqn.config import DqnConfig
from learner.inference.module import Module
from learner.saving import export, resume
from learner.serving.publish import WeightPublisher
from learner.weights import checkpoint
from learner.weights.checkpoint import Checkpoints, load_into, read, unpack
from learner.weights.errors import CheckpointError
from learner.weights.follow import WeightFollower
from learner.weights.manifest import MANIFEST, DamagedManifest, read_manifest
from replay.config import ReplayConfig
from replay.log.segments import LogRefused, scan
from replay.log.state import STATE_FORMAT, DamagedState, read_state
from replay.table.ring import REFUSED_STATES
from replay.table.selectors import make_selector
from tests.chaos.raw import Raw
from tests.chaos.rows import Row
from tests.chaos.siege import Siege
from tests.harness.waiting import wait_until
from tests.learner.examples import make_update
from tests.replay.examples import make_spec
from transport.experience import SpecError, read_spec
from transport.messages.codec import pack
from transport.messages.weights import Weights
from transport.run_dir import RunDir
from transport.sockets.channel import FRAME_BYTES
from transport.sockets.server import Server

pytestmark = pytest.mark.chaos
SPEC = make_spec(length=8, stack=2, n_step=2)
CPU = torch.device("cpu")
MEGABYTE = 1 << 20


class Payload:
    """Unpickling it makes a folder."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self._canary),)


def saved(save: Callable[[io.BytesIO, Any], object], what: object) -> bytes:
    file = io.BytesIO()
    save(file, what)
    return file.getvalue()


def code(canary: Path) -> dict[str, bytes]:
    """What would make the folder if anything ran it: in every protocol of pickle, and in formats of other loaders."""
    payload = Payload(canary)
    found = {f"pickle {protocol}": pickle.dumps(payload, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)}
    return found | {
        "an optimised pickle": pickletools.optimize(pickle.dumps(payload)),
        "torch.save": saved(lambda file, what: torch.save(what, file), {"policy": payload}),
        "an npy of objects": saved(lambda file, what: np.save(file, what, allow_pickle=True), np.array([payload], dtype=object)),
        "YAML": f"!!python/object/apply:os.mkdir ['{canary}']".encode(),
        "Python": f"__import__('os').mkdir('{canary}')".encode(),
    }


def raw(header: object, data: bytes = b"\0" * 64, size: int | None = None) -> bytes:
    """A safetensors file whose header says what it likes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def tensor(shape: list[int], offsets: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def malformed(canary: Path) -> dict[str, bytes]:
    """Files by their fault."""
    payload = Payload(canary)
    objects = io.BytesIO()
    np.savez(objects, numbers=np.array([payload], dtype=object), chunk_keys=np.zeros(1), values=np.zeros(1))
    archive = io.BytesIO()
    header = "{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }".ljust(117) + "\n"
    with zipfile.ZipFile(archive, "w") as claims:
        for name in ("numbers", "chunk_keys", "values"):
            claims.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
    sound = safetensors.numpy.save({"x": np.zeros(16, np.float32)}, {"epoch": "1"})
    return {
        "an npz of objects": objects.getvalue(),
        "an npz that claims 8 TB": archive.getvalue(),
        "cut": sound[:-7],
        "longer than it says": sound + b"more",
        "no checksum": sound,
        "another checksum": safetensors.numpy.save({"x": np.zeros(16, np.float32)}, {checkpoint.DIGEST_KEY: "0" * 32}),
        "overlapping offsets": raw({"a": tensor([8], [0, 32]), "b": tensor([8], [16, 48])}, b"\0" * 48),
        "a hole between offsets": raw({"a": tensor([4], [0, 16]), "b": tensor([4], [32, 48])}, b"\0" * 48),
        "offsets beyond the end": raw({"a": tensor([1 << 40], [0, 1 << 42])}),
        "offsets that run back": raw({"a": tensor([4], [16, 0])}),
        "a shape that overflows": raw({"a": tensor([1 << 32, 1 << 32, 4], [0, 16])}),
        "a shape below nothing": raw(b'{"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}}'),
        "an unknown type": raw({"a": tensor([4], [0, 16], "O8")}),
        "a header of 2^63 bytes": raw({}, size=1 << 63),
        "a header longer than the file": raw({}, size=1 << 30),
        "a nested header": raw(b'{"a":' * 100_000),
        "a header that is no JSON": raw(b"\xff" * 64),
        "nothing": b"",
        "text": b"cos\nsystem\n(S'touch here'\ntR.",
    }


STRICT: dict[str, tuple[Callable[[Path], object], type[Exception]]] = {
    "checkpoint.read": (read, CheckpointError),
    "weights from the wire": (lambda path: unpack(path.read_bytes()), CheckpointError),
    "a learner's newest": (lambda path: Checkpoints(path.parent, 3).newest(lambda line: None), CheckpointError),
    "headrace export's": (export.load, CheckpointError),
    "replay's state": (lambda path: read_state(path, 8), DamagedState),
    "the manifest": (lambda path: read_manifest(path.parent), DamagedManifest),
    "the spec": (lambda path: read_spec(path.read_bytes()), SpecError),
}


@pytest.mark.row("S15", "hostile content in every file that is loaded, and as weights from the wire", "all refused, no code run")
def test_no_loader_takes_a_hostile_file_or_runs_what_is_in_it(row: Row, tmp_path: Path) -> None:
    canary, folder, run = tmp_path / "canary", tmp_path / "files", RunDir(tmp_path / "run")
    pickle.loads(code(canary)["pickle 0"])
    assert canary.exists(), "the payload does what it says"
    canary.rmdir()
    folder.mkdir()
    run.create()
    path = folder / "epoch-0000000001.safetensors"
    lenient: dict[Path, Callable[[], object]] = {
        run.config: lambda: load_run_config(run),
        run.path / "endpoints" / "replay.json": lambda: run.endpoint("replay"),
        run.status: lambda: runs.read_status(run),
    }
    files, refused, resident = code(canary) | malformed(canary), 0, psutil.Process().memory_info().rss
    for kind, content in files.items():
        path.write_bytes(content)
        (folder / MANIFEST).write_bytes(content)
        for name, (load, error) in STRICT.items():
            if name == "weights from the wire" and "checksum" in kind:
                continue  # over the wire the checksum is the announcement's
            with pytest.raises(error) as refusal:
                load(path)
            assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 400, (kind, name)
            refused += 1
        assert Best(path, {"spec_digest": SPEC.digest}).version == -1
        (folder / "0000000000000000.segment").write_bytes(content)
        with suppress(LogRefused):
            found = scan(folder, SPEC)
            assert not found.entries and (found.torn or found.damaged or not content)
        for file, load_it in lenient.items():
            file.write_bytes(content)
            with suppress(ConfigError):
                load_it()
    grown = psutil.Process().memory_info().rss - resident
    loaders = len(STRICT) + len(lenient) + 2
    row.measured(files=len(files), loaders=loaders, refused=refused, canary=canary.exists(), grown_bytes=grown)
    assert not canary.exists() and grown < 64 * MEGABYTE


@pytest.mark.row("S1", "pickles for every port", "the canary file absent, the process alive")
def test_nothing_that_arrives_is_run(row: Row, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    hostile, sent = list(code(canary).values()), 0
    publisher = WeightPublisher(f"ipc://{tmp_path}/a", f"ipc://{tmp_path}/p", 1)
    publisher.publish(nn.Linear(3, 2), 0)
    control, learner = Server(f"ipc://{tmp_path}/c"), Server(f"ipc://{tmp_path}/l")
    with Siege(tmp_path / "siege") as besieged:
        honest = besieged.honest(200)
        for address in (besieged.address, *publisher.addresses, control.address):
            for payload in hostile:
                for parts in ([payload], [pack(Weights(1, 1, "x")), payload], [b"", payload]):
                    raw = Raw(address, b"SUB" if address == publisher.addresses[0] else b"DEALER")
                    raw.send(*parts)
                    raw.close()
                    sent += 1
                while control.receive(0.01):
                    pass
        follower = WeightFollower(*publisher.addresses, Module(nn.Linear(3, 2)))
        wait_until(lambda: follower.poll() or follower.version == 0, what="weights are served still")
        served = honest.rate(1)
        record = besieged.end()
    deceived = WeightFollower(publisher.addresses[0], learner.address, Module(nn.Linear(3, 2)))
    deceived.poll()
    arrival = learner.receive(30)
    assert arrival is not None
    for parts in ([payload] for payload in hostile):
        learner.send(arrival[0], Weights(1, 1, "x"), parts)
    learner.send(arrival[0], Weights(1, 1, "x"), [bytes(FRAME_BYTES)] * 20)
    wait_until(lambda: (deceived.poll(), deceived.rejected == len(hostile) + 1)[1], what="all are rejected")
    for end in (follower, deceived, publisher, control, learner):
        end.close()
    row.measured(payloads=len(hostile), sent=sent, canary=canary.exists(), malformed=int(record["malformed"]), rate_after=served)
    row.measured(rejected_by_an_actor=deceived.rejected, **besieged.outcome)
    assert not canary.exists() and served > 0 and record["malformed"] > 0 and control.malformed > 0
    assert deceived.version == -1 and besieged.sound


@pytest.mark.row("S15", "checkpoints with a sound checksum whose contents are another's", "refused; nothing of them is adopted")
def test_a_checkpoint_that_is_sound_but_not_ours_is_refused(row: Row, tmp_path: Path) -> None:
    algorithm = make_update(SPEC, DqnConfig(hidden=8, n_step=2))
    runtime = algorithm.optimiser.process
    tensors, about = resume.gather(algorithm, runtime, {"updates": 1.0}, {"epoch": "1"})
    arrays = {name: checkpoint.as_array(value) for name, value in tensors.items()}
    name = next(name for name in arrays if name.startswith("policy/") and arrays[name].ndim == 2)
    wrong: dict[str, tuple[dict[str, np.ndarray], dict[str, str]]] = {
        "a shape": (arrays | {name: arrays[name][:1]}, about),
        "a type": (arrays | {name: arrays[name].astype(np.float64)}, about),
        "a tensor too many": (arrays | {"policy/__class__": arrays[name]}, about),
        "a tensor too few": ({key: value for key, value in arrays.items() if key != name}, about),
        "moments of nobody": (arrays | {"optimiser/main/adam/999/exp_avg": arrays[name]}, about),
        "moments by a strange name": (arrays | {"optimiser/main/adam/../exp_avg": arrays[name]}, about),
        "a random state that is none": (arrays | {"random/cpu": np.zeros(3, np.uint8)}, about),
        "counters that are code": (arrays, about | {"counters": "__import__('os').system('true')"}),
        "counters that are a list": (arrays, about | {"counters": "[1]"}),
        "counters without end": (arrays, about | {"progress": '{"updates": 1e999}'}),
        "nested counters": (arrays, about | {"counters": '{"a":' * 100_000}),
        "no counters": (arrays, {"epoch": "1"}),
    }
    for kind, (contents, metadata) in wrong.items():
        checkpoint.write(tmp_path / "x.safetensors", contents, metadata)
        weights, read_about = read(tmp_path / "x.safetensors")
        with pytest.raises(CheckpointError) as refusal:
            resume.restore(algorithm, runtime, weights, read_about)
        assert "\n" not in str(refusal.value), kind
    before = {key: value.clone() for key, value in algorithm.policy.state_dict().items()}
    with pytest.raises(CheckpointError):
        load_into(algorithm.policy, {key: np.zeros(1 << 10, np.float32) for key in before})
    row.measured(files=len(wrong), adopted=0)
    assert all(torch.equal(value, algorithm.policy.state_dict()[key]) for key, value in before.items())


@pytest.mark.row("S15", "a state of replay whose numbers are no state's", "refused; the log is restored without it")
def test_a_state_that_says_what_cannot_be_is_left_out(row: Row, tmp_path: Path) -> None:
    true: dict[str, Any] = {"next_chunk": 3, "inserted_items": 9, "sampled_items": 9, "counters": {}}
    drawing = {"exponent": 0.6, "highest": 1.0, "random": dict(np.random.default_rng(0).bit_generator.state)}
    true |= {"format": STATE_FORMAT, "selector": drawing}
    keys, values = np.arange(4), np.ones(32)
    cases: dict[str, tuple[dict[str, Any], np.ndarray, np.ndarray]] = {
        "a key beyond all keys": (true | {"next_chunk": 2**70}, keys, values),
        "a key below nothing": (true | {"next_chunk": -1}, keys, values),
        "a count without end": (true | {"inserted_items": float("inf")}, keys, values),
        "a priority that is none": (true, keys, np.full(32, np.nan)),
        "a selector that is no table": (true | {"selector": 3}, keys, values),
        "a field of somebody else's": (true | {"run": "os.system"}, keys, values),
        "too few priorities": (true, keys, values[:14]),
        "more priorities than items": (true, keys, np.ones(36)),
        "keys of another type": (true, keys.astype(np.float32), values),
        "no keys at all": (true, np.zeros(()), values),
        "a table without slots": (true, keys[:0], values[:0]),
        "keys in a square": (true, np.zeros((4, 2), np.int64), values),
        "a counter without end": (true | {"counters": {"dropped_steps": float("inf")}}, keys, values),
    }

    def written(numbers: dict[str, Any], chunk_keys: np.ndarray, priorities: np.ndarray, save: Callable[..., None]) -> Path:
        text = np.frombuffer(json.dumps(numbers).encode(), np.uint8)
        save(tmp_path / "state.npz", numbers=text, chunk_keys=chunk_keys, values=priorities)
        return tmp_path / "state.npz"

    assert read_state(written(true, keys, values, np.savez), 8) is not None
    for kind, case in cases.items():
        with pytest.raises(DamagedState) as refusal:
            read_state(written(*case, np.savez), 8)
        assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 400, kind
    with pytest.raises(DamagedState, match="compressed"):
        read_state(written(true, keys, values, np.savez_compressed), 8)
    selector = make_selector(ReplayConfig(), 32, np.random.default_rng(1))
    of_the_selector: dict[str, dict[str, object]] = {
        "a highest that is none": {"highest": -1.0},
        "a highest that draws nothing": {"highest": 0.0},
        "a highest without end": {"highest": float("inf")},
        "another generator": {"random": {"bit_generator": "MT19937", "state": {}}},
        "a field of another": {"run": "os.system"},
    }
    selector.resume(drawing)
    for change in of_the_selector.values():
        with pytest.raises(REFUSED_STATES):
            selector.resume(drawing | change)
    refused = len(cases) + len(of_the_selector) + 1
    row.measured(states=refused, refused=refused)
