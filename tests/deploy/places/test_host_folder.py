"""What a host takes of a run's folder, and what it refuses."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest

from actors.config import ActorsConfig, EnvConfig
from actors.settings import read_settings
from deploy import settings
from deploy.config.run import DeployConfig, RunConfig
from deploy.places.remote.host_folder import FolderRefused, HostFolder, collect, settings_digest
from deploy.places.remote.hosts import Parts, settings_of
from learner.config import InferenceProcess
from learner.description import PolicyDescription
from tests.chaos.streams import counting_spec
from tests.transport.keys import Ring
from transport.experience import write_spec
from transport.lifetime import given_incarnation
from transport.run_dir import RunDir
from transport.sockets import keys
from transport.sockets.authenticator import new_pair


def config_of(env: str = "CartPole-v1", wrappers: tuple[str, ...] = ()) -> RunConfig:
    return RunConfig(env=EnvConfig(id=env, wrappers=wrappers), deploy=DeployConfig(bind="127.0.0.1", orphan_seconds=77.0))


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "runs" / "night")
    made.create()
    made.spec.write_bytes(write_spec(counting_spec()))
    settings.write(made, config_of())
    Ring(made.key_folder)
    for number, role in enumerate(settings.servers(1)):
        made.write_endpoint(role, f"tcp://127.0.0.1:{7701 + number}")
    return made


def collected(run: RunDir, config: RunConfig) -> Parts:
    found = collect(run, config)
    assert found is not None
    return found


def test_a_host_has_what_an_actor_reads_and_makes_its_keys_itself(run: RunDir, tmp_path: Path) -> None:
    found = collected(run, config_of())
    host = HostFolder(tmp_path / "host", (), new_pair(), places=1)
    host.write(*found)
    assert host.digest == found.folder.digest and found.folder.orphan_seconds == 77.0
    first, second = host.prepare("actor-1"), host.prepare("actor-1")
    assert first != second, "a new pair for each incarnation"
    own = host.run.keys("actor-1")
    assert own is not None and own.pair.public == second
    assert own.server("replay") == Ring(run.key_folder).of("replay").pair.public
    assert read_settings(host.run, 1).env.id == "CartPole-v1"
    assert [host.run.endpoint(role) for role in settings.servers(1)] == [run.endpoint(role) for role in settings.servers(1)]
    secret = host.run.key_folder / "actor-1.secret"
    if os.name == "posix":
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert {file.stem for file in host.run.key_folder.glob("*.secret")} == {"actor-1"}


@pytest.mark.skipif(os.name != "posix", reason="needs Unix sockets")
def test_with_a_relay_actors_connect_to_it_and_it_alone_to_the_learner(run: RunDir, tmp_path: Path) -> None:
    description = PolicyDescription({"weight": ((2, 2), "float32")})
    run.policy.write_bytes(msgspec.json.encode(description))
    found, pair = collected(run, config_of()), new_pair()
    host = HostFolder(tmp_path / "host", (), pair, places=2)
    for _ in range(2):  # a folder that is sent again changes nothing of that
        host.write(*found)
        assert host.servers == ("relay",)
        for endpoint in ("weights", "payload"):
            assert host.run.endpoint(endpoint) == f"ipc://{host.run.sockets}/{endpoint}"
            assert host.run.endpoint(f"learner-{endpoint}") == run.endpoint(endpoint)
        assert host.run.endpoint("replay") == run.endpoint("replay")
    assert host.run.sockets is not None and stat.S_IMODE(host.run.sockets.stat().st_mode) == 0o700
    host.prepare_server("relay-0")
    own = host.run.keys("relay-0")
    assert own is not None and own.pair == pair, "the host's own keys"
    assert stat.S_IMODE((host.run.key_folder / "relay-0.secret").stat().st_mode) == 0o600
    assert pair.secret.encode() not in msgspec.msgpack.encode(found.folder) + b"".join(found.files)


def test_with_one_place_or_without_a_described_policy_each_actor_fetches_its_own_weights(run: RunDir, tmp_path: Path) -> None:
    without_policy = HostFolder(tmp_path / "first", (), new_pair(), places=2)
    without_policy.write(*collected(run, config_of()))
    run.policy.write_bytes(msgspec.json.encode(PolicyDescription({"weight": ((2, 2), "float32")})))
    one_place = HostFolder(tmp_path / "second", (), new_pair(), places=1)
    one_place.write(*collected(run, config_of()))
    for host in (without_policy, one_place):
        assert not host.servers and host.run.endpoint("weights") == run.endpoint("weights")


@pytest.mark.parametrize("places", [1, 2])
def test_a_host_of_a_run_with_batched_inference_has_a_process_for_it(run: RunDir, tmp_path: Path, places: int) -> None:
    run.policy.write_bytes(msgspec.json.encode(PolicyDescription({"weight": ((2, 2), "float32")})))
    actors = ActorsConfig(envs_per_actor=3, inference="batched", inference_device="cuda", inference_threads=5, precision="int8")
    config, pair = msgspec.structs.replace(config_of(), actors=actors), new_pair()
    host = HostFolder(tmp_path / "host", (), pair, places)
    host.write(*collected(run, config))
    assert host.servers == (("relay", "inference") if places > 1 and os.name == "posix" else ("inference",))
    host.prepare_server("inference-0")
    own = host.run.keys("inference-0")
    assert own is not None and own.pair == pair, "the host's own keys, by which the learner knows it"
    found = msgspec.json.decode(host.run.settings("inference-0").read_bytes(), type=InferenceProcess)
    assert (found.algorithm["name"], found.most_count) == ("dqn", 3)
    assert (found.precision, found.device, found.threads) == ("int8", "cuda", 5)
    own_address = f"ipc://{host.run.sockets}/inference" if os.name == "posix" else "tcp://127.0.0.1:*"
    assert host.run.local_address("inference") == own_address, "although the run is reached over TCP"


def test_no_secret_key_is_in_any_part_that_travels(run: RunDir, tmp_path: Path) -> None:
    found = collected(run, config_of())
    host = HostFolder(tmp_path / "host", (), new_pair(), places=1)
    host.write(*found)
    public = host.prepare("actor-0")
    sent = msgspec.msgpack.encode(found.folder) + b"".join(found.files) + public.encode()
    for folder in (run.key_folder, host.run.key_folder):
        for path in folder.glob("*.secret"):
            assert keys.read_pair(folder, path.stem).secret.encode() not in sent


def test_nothing_is_collected_before_every_server_has_an_address_nor_without_keys(run: RunDir) -> None:
    (run.path / "endpoints" / "weights.json").unlink()
    assert collect(run, config_of()) is None
    run.write_endpoint("weights", "tcp://127.0.0.1:1")
    before = collected(run, config_of())
    assert collected(run, config_of()) == before
    run.write_endpoint("weights", "tcp://127.0.0.1:2")
    assert collected(run, config_of()).folder.digest != before.folder.digest
    run.key_folder.rename(run.path / "elsewhere")
    assert collect(run, config_of()) is None


def test_the_first_part_of_the_digest_says_what_an_actor_was_started_with(run: RunDir) -> None:
    config = config_of()
    before = settings_digest(run, config)
    assert settings_of(collected(run, config).folder.digest) == before
    run.write_endpoint("weights", "tcp://127.0.0.1:2")
    more = msgspec.structs.replace(config, actors=ActorsConfig(count=9))
    assert settings_digest(run, more) == before, "scaling changes no actor at work"
    others = [
        msgspec.structs.replace(config, actors=ActorsConfig(envs_per_actor=3)),
        msgspec.structs.replace(config, seed=7),
        config_of("Acrobot-v1"),
    ]
    assert before not in [settings_digest(run, other) for other in others]
    run.policy.write_bytes(b"another network")
    assert settings_digest(run, config) != before


@pytest.mark.parametrize(
    ("env", "wrappers", "allowed", "named"),
    [
        ("my_pkg.envs:make", (), (), "my_pkg.envs:make"),
        ("my_pkg.envs:make", (), ("my_pk", "my_pkg.other"), "my_pkg.envs:make"),
        ("CartPole-v1", ("theirs:wrap",), ("my_pkg",), "theirs:wrap"),
        ("my_pkg.envs:make", (), ("my_pkg",), ""),
        ("my_pkg.envs:make", ("my_pkg:wrap",), ("my_pkg.envs", "my_pkg"), ""),
    ],
)
def test_settings_that_name_code_need_a_package_that_the_host_allows(
    env: str, wrappers: tuple[str, ...], allowed: tuple[str, ...], named: str, run: RunDir, tmp_path: Path
) -> None:
    host, found = HostFolder(tmp_path / "host", allowed, new_pair(), places=1), collected(run, config_of(env, wrappers))
    if not named:
        host.write(*found)
        return
    with pytest.raises(FolderRefused, match=f"names {named}.*join with --allow"):
        host.write(*found)
    assert not host.digest and not host.run.path.exists()


def test_what_is_not_of_a_run_is_refused_whole(run: RunDir, tmp_path: Path) -> None:
    host, found = HostFolder(tmp_path / "host", (), new_pair(), places=1), collected(run, config_of())
    folder, files = found
    wrong = [
        (folder, files[:3]),
        (folder, (b"{}", *files[1:])),
        (folder, (*files[:2], b'{"bind": 3}', files[3])),
        (folder, (*files[:3], b'{"seed": 1, "command": "sh"}')),
        (msgspec.structs.replace(folder, endpoints={"../../x": "tcp://a:1"}), files),
        (msgspec.structs.replace(folder, endpoints={"replay": "ipc:///tmp/x"}), files),
    ]
    for message, parts in wrong:
        with pytest.raises(FolderRefused):
            host.write(message, parts)
    assert not host.run.path.exists()


def test_an_incarnation_is_given_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_INCARNATION", "12345")
    assert given_incarnation() == 12345
