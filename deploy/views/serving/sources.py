"""Where versions of a policy come from: a file, a run's best or newest checkpoint, or its learner while it is up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from actors.datasets.base import Space
from actors.envs.spaces import read_spaces
from actors.exports.onnx.read import is_onnx
from actors.exports.onnx.read import load as load_onnx
from actors.settings import read_settings
from deploy.views.serving.version import Version, reason_of
from learner.algorithms.base import make_algorithm
from learner.inference.open import open_inference, run_description
from learner.saving.export import load as load_exported
from learner.weights.checkpoint import CheckpointError, Weights, policy_weights, read, unpack
from learner.weights.follow import PayloadFollower, most_payload_bytes
from transport.experience import Columns, ExperienceSpec
from transport.files.documents import decode, read_bytes
from transport.messages.weights import Weights as WeightsMessage
from transport.run_dir import RunDir


class PolicyInfo(NamedTuple):
    """What all versions of a policy have in common."""

    run: str
    env: str
    algorithm: str
    spec: ExperienceSpec
    observation_space: Space
    action_space: Space

    def zeros(self) -> Columns:
        """An observation [1, stack, *shape] to try a version with."""
        shapes = {field.name: ((1, self.spec.stack, *field.shape), field.dtype) for field in self.spec.fields}
        return {name: np.zeros(shape, np.dtype(dtype)) for name, (shape, dtype) in shapes.items()}


class Source(Protocol):
    about: PolicyInfo

    def first(self) -> Version:
        """Raises CheckpointError and what reading the file raises."""

    def newer(self) -> Version | None:
        """A version that has come since the last call. Raises BadVersion."""


class BadVersion(ValueError):
    """New weights that cannot serve. `name`: where they are from, without a path."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


class Fixed:
    """A source of one version alone."""

    def __init__(self, source: Source) -> None:
        self.about, self.first = source.about, source.first

    def newer(self) -> Version | None:
        return None


class _Watched:
    """A file that is replaced from time to time. It is read when it has not changed between two looks."""

    def __init__(self, path: Path, load: Callable[[], Version]) -> None:
        self._path, self._load = path, load
        self._read = self._seen = self._stamp()

    def newer(self) -> Version | None:
        stamp = self._stamp()
        if stamp == self._read or stamp is None:
            return None
        if stamp != self._seen:
            self._seen = stamp
            return None
        self._read = stamp
        try:
            return self._load()
        except Exception as error:  # of a damaged file, or of code that it names
            raise BadVersion(self._path.name, reason_of(error).replace(str(self._path), self._path.name)) from error

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


class FileSource:
    """A file of `headrace export`, safetensors or ONNX; another one in its place is a new version."""

    def __init__(self, path: Path, check: Callable[[dict[str, Any]], None]) -> None:
        """`check` sees the algorithm's settings before anything that they name is imported. Raises what reading raises."""
        self._path, self._check = path, check
        self._watched = _Watched(path, self._load)
        self._first, self.about = self._open()

    def first(self) -> Version:
        return self._first

    def newer(self) -> Version | None:
        return self._watched.newer()

    def _load(self) -> Version:
        version, about = self._open()
        theirs, ours = ((one.spec.fields, one.spec.action, one.spec.stack) for one in (about, self.about))
        if theirs != ours:
            raise CheckpointError(f"made for other observations or actions, those of {about.env}")
        if dict(version.acting.state) != dict(self._first.acting.state):
            raise CheckpointError("it has another memory than the policy that serves")
        return version

    def _open(self) -> tuple[Version, PolicyInfo]:
        inference, spec, algorithm, metadata = (load_onnx if is_onnx(self._path) else load_exported)(
            self._path, check=self._check
        )
        if "spaces" not in metadata:
            raise CheckpointError(f"{self._path} does not describe the environment's spaces: export it again from its run")
        config, spaces = decode(metadata["config"], dict[str, Any]), read_spaces(metadata["spaces"])
        try:
            names = metadata.get("run", self._path.stem), str(config["env"]["id"]), str(config["algorithm"]["name"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{self._path} does not name its environment and algorithm: export it again") from error
        return Version(spec, algorithm, inference, metadata, self._path.name), PolicyInfo(*names, spec, *spaces)


class RunSource:
    """A file of weights in a run's folder, which the learner or the evaluator replaces."""

    def __init__(self, run: RunDir, path: Path) -> None:
        """Raises SpecError, EnvError, UnknownName, Damaged, OSError."""
        self._path = path
        self._settings = read_settings(run)
        self._algorithm = make_algorithm(self._settings.algorithm)
        self.description = run_description(run, self._algorithm, self._settings.spec)
        spaces = read_spaces(read_bytes(run.spaces))
        env, algorithm = self._settings.env.id, self._settings.algorithm.name
        self.about = PolicyInfo(run.name, env, algorithm, self._settings.spec, *spaces)
        self._watched = _Watched(path, self.first)

    def first(self) -> Version:
        weights, metadata = read(self._path)
        if (found := metadata.get("spec_digest", "")) != self.about.spec.digest:
            raise CheckpointError(f"{self._path.name} was made for another experience spec ({found}) than that of the run")
        return self.make(policy_weights(weights), metadata, self._path.name)

    def newer(self) -> Version | None:
        return self._watched.newer()

    def make(self, weights: Weights, metadata: dict[str, str], source: str) -> Version:
        """Raises CheckpointError."""
        inference = open_inference(self._algorithm, self.about.spec, self.description, threads=1)
        inference.load(weights)
        return Version(self.about.spec, self._algorithm, inference, metadata, source)


class LiveSource:
    """The learner of a run that is up, or will be. Until then its file serves."""

    def __init__(self, run: RunDir, file: RunSource, name: str) -> None:
        """`name`: of this server, as the run's list of keys has it."""
        self._run, self._file, self._name = run, file, name
        self.about, self.first = file.about, file.first
        self._follower: PayloadFollower | None = None
        self._at: tuple[str, str] | None = None  # the addresses of the follower
        self._found: Version | None = None
        self._fault = ""

    def newer(self) -> Version | None:
        addresses = self._addresses()
        if addresses is not None and addresses != self._at:  # a run that was started again may have others
            former, described = self._follower, self._file.description
            most_bytes = most_payload_bytes(described.most_bytes, len(described.tensors))
            self._follower = PayloadFollower(*addresses, self._adopt, most_bytes, self._run.keys(self._name))
            self._at = addresses
            if former is not None:
                former.close()
        if self._follower is None:
            return None
        self._found, self._fault = None, ""
        self._follower.poll()
        if self._fault:
            raise BadVersion("weights of the learner", self._fault)
        return self._found

    def _addresses(self) -> tuple[str, str] | None:
        weights, payload = (self._run.endpoint(role) for role in ("weights", "payload"))
        return None if weights is None or payload is None else (weights, payload)

    def _adopt(self, message: WeightsMessage, payload: bytes) -> None:
        try:
            self._found = self._file.make(unpack(payload), {"policy_version": str(message.version)}, "the learner")
        except CheckpointError as error:
            self._fault = str(error)
            raise
