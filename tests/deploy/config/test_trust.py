"""Settings that name code are taken from the command line and from one's own runs, and refused in any other file."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import gymnasium
import msgspec
import numpy as np
import pytest
import tomli_w

import headrace
from actors.envs.base import builtin_families
from actors.envs.spaces import describe_space
from actors.trust import code_keys
from deploy import runs
from deploy.cli.main import COMMANDS, main
from deploy.config import trust
from deploy.config.algorithm import builtin_algorithms
from deploy.config.files import write_config
from deploy.config.layers import layers, resolve
from deploy.config.run import RunConfig
from deploy.errors import ConfigError
from deploy.studies.suite.base import SuiteFolder, find_kind
from deploy.studies.suite.file import Contestant, ContestantOptions, SuiteOptions, TaskOptions, order, read
from deploy.studies.sweep.check import check_keys
from deploy.studies.sweep.plan import read_plan
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.networks import q_network
from learner.weights import checkpoint
from tests.learner.examples import make_spec, vector
from transport.experience import Categorical, ExperienceSpec, observed, write_spec
from transport.run_dir import RunDir

HOSTILE = "hostile:Thing"
CODE = {
    **{key: HOSTILE for key in ("env.id", "algorithm.name", "algorithm.network", "replay.selector", "deploy.on")},
    **{key: [HOSTILE] for key in ("env.wrappers", "deploy.sinks", "deploy.track", "deploy.callbacks")},
    "deploy.actor_python": "/tmp/hostile/python",
}
REFUSE = [
    *("up --run got", "eval got", "demo got", "export got out.safetensors", "keys got --export actor-7 w", "fsck got"),
    *("replay got", "fork got --set seed=3", "serve got"),
]
# What else reads a run's folder. The commands that are left read no run, or serve until they are told to end.
READ = [
    *("down got", "status got", "scale 2 got", "pause got", "unpause got", "checkpoint got", "evaluate-now got", "top got"),
    *("logs --run got", "report got --out page.html", "list", "keys got", "keys got --renew", "invite got --hosts 1"),
    *(
        "dataset show got",
        "dataset export got",
        "push got me/policy",
        "trace got 1",
        "purge got actor-0",
        "reshard 2 got",
        "rm got --yes",
    ),
]
NO_RUN = {"pull", "verify", "web", "sweep", "suite", "join", "init", "completion", "doctor", "envs", "presets", "bench", "play"}
# Settings with a text that is never imported or run.
HARMLESS = {
    *("deploy.bind", "deploy.advertise", "ray.address", "learner.device", "learner.weights"),
    "replay.demonstrations",
    "actors.inference_device",
    *("env.urdf", "env.arm", "env.actions", "env.info_keywords"),
    *("env.bind", "env.certificate", "env.private_key", "env.origins", "env.observation", "env.action"),
}
SPEC = make_spec(vector())


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module that must not be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "hostile", raising=False)
    made = "def Thing(env=None): return env or gymnasium.make('CartPole-v1')"
    (tmp_path / "hostile.py").write_text(f"import gymnasium, pathlib\npathlib.Path('canary').touch()\n{made}\n")
    return tmp_path


def table(key: str, value: Any) -> dict[str, Any]:
    section, name = key.split(".")
    return {section: {name: value}}


def stranger(folder: Path, key: str, value: Any) -> RunDir:
    """A run's folder that another account has made."""
    run = RunDir(folder / "runs" / "got")
    run.create()
    values = tomllib.loads(write_config(RunConfig()).decode())
    section, name = key.split(".")
    values[section][name] = value
    run.config.write_text(tomli_w.dumps(values))
    run.settings("evaluator").parent.mkdir(exist_ok=True)
    acting = {"seed": 1, "env": values["env"], "algorithm": values["algorithm"], "actors": {}, "evaluator": {}}
    run.settings("evaluator").write_bytes(msgspec.json.encode(acting))
    run.spec.write_bytes(write_spec(SPEC))
    run.spaces.write_text("{}")
    run.latest.parent.mkdir(exist_ok=True)
    run.latest.write_bytes(b"weights")
    return run


def test_each_setting_with_a_text_names_code_or_is_harmless() -> None:
    sections = {f"{name}.": kind for name, kind in msgspec_sections()}
    kinds = [
        *sections.items(),
        *(("algorithm.", kind.Config) for kind in builtin_algorithms().values()),
        *(("env.", kind.Options) for kind in builtin_families().values()),
    ]
    texts = {prefix + field.name for prefix, kind in kinds for field in msgspec.structs.fields(kind) if is_text(field.type)}
    marked = {key for prefix, kind in kinds for key in code_keys(kind, prefix)} | trust.code_keys()
    assert marked == set(CODE)
    assert texts - HARMLESS <= marked, "a new setting: does it name code?"


def msgspec_sections() -> list[tuple[str, type[msgspec.Struct]]]:
    found = [(field.name, field.type) for field in msgspec.structs.fields(RunConfig)]
    return [(name, kind) for name, kind in found if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]


def is_text(kind: Any) -> bool:
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return kind is str or (get_origin(kind) is tuple and is_text(get_args(kind)[0]))


@pytest.mark.parametrize("key", CODE)
def test_a_file_from_elsewhere_cannot_name_code(key: str, hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (hostile / "got.toml").write_text(tomli_w.dumps(table(key, CODE[key])))
    assert main(["up", "--config", "got.toml"]) == 2
    told = capsys.readouterr().err
    assert f"got.toml: {key} = " in told and "--trust-config" in told and told.count("\n") == 1
    assert not (hostile / "canary").exists() and not (hostile / "runs").exists()
    with pytest.raises(ConfigError, match="names code"):
        layers({}, hostile / "got.toml")


@pytest.mark.parametrize("key", CODE)
@pytest.mark.parametrize("command", REFUSE)
def test_a_run_from_elsewhere_cannot_name_code(command: str, key: str, hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = stranger(hostile, key, CODE[key])
    run.key_folder.mkdir()
    assert main(command.split()) == 2
    told = capsys.readouterr().err
    assert f"{key} = " in told and "has not made the run" in told and "--trust-config" in told and told.count("\n") == 1
    assert not (hostile / "canary").exists()


def test_no_other_command_runs_what_a_run_from_elsewhere_names(hostile: Path) -> None:
    assert {command.split()[0] for command in REFUSE + READ} == COMMANDS.keys() - NO_RUN, "a new command: does it run code?"
    run = stranger(hostile, "env.id", HOSTILE)
    values = tomllib.loads(run.config.read_text())
    for key, value in CODE.items():
        section, name = key.split(".")
        values[section][name] = str(program(hostile)) if key == "deploy.actor_python" else value
    run.config.write_text(tomli_w.dumps(values))
    for command in READ:
        main(command.split())
        assert not (hostile / "canary").exists(), command


def program(folder: Path) -> Path:
    """A program that must not be run."""
    found = folder / "evil.sh"
    found.write_text("#!/bin/sh\ntouch canary\n")
    found.chmod(0o755)
    return found


@pytest.mark.parametrize(
    "settings",
    [
        "tasks.CartPole-v1.env.id = 'hostile:Thing'",
        "tasks.CartPole-v1.env.wrappers = ['hostile:Thing']",
        *(f"contestants.x.settings.{key} = {value!r}" for key, value in CODE.items()),
        *(f"contestants.x.tasks.CartPole-v1.{key} = {value!r}" for key, value in CODE.items()),
        "contestants.x = {kind = 'stable-baselines3', python = './evil.sh'}",
        "contestants.x = {kind = 'stable-baselines3', settings = {env = 'hostile:Thing-v0'}}",
        "contestants.x = {kind = 'stable-baselines3', settings = {env_kwargs = {inner = ['hostile:Thing-v0']}}}",
        "contestants.x = {kind = 'stable-baselines3', tasks = {CartPole-v1 = {env = 'hostile:Thing-v0'}}}",
    ],
)
def test_a_suite_from_elsewhere_cannot_name_code_or_a_program(
    settings: str, hostile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(hostile)
    kept = "" if "contestants" in settings else "contestants.x = {}"
    (hostile / "got.toml").write_text(f"seeds = 1\n{settings}\n{kept}\ntasks.CartPole-v1.minutes = 1")
    assert main(["suite", "got.toml"]) == 2
    told = capsys.readouterr().err
    assert "got.toml: " in told and "names code" in told and "--trust-config" in told and told.count("\n") == 1
    assert not (hostile / "canary").exists() and not (hostile / "runs").exists()


@pytest.mark.parametrize("key", ["env.wrappers", "deploy.actor_python"])
def test_a_sweep_from_elsewhere_cannot_name_code(key: str, hostile: Path) -> None:
    search = {"learner.seed": {"choices": [1]}}
    (hostile / "got.toml").write_text(
        tomli_w.dumps({"sweep": {"trials": 1, "time": 9}, "search": search} | table(key, CODE[key]))
    )
    with pytest.raises(ConfigError, match=rf"{key} = .*names code.*--trust-config"):
        check_keys(read_plan(hostile / "got.toml"))
    assert not (hostile / "canary").exists()


def test_each_text_of_a_suite_names_code_or_is_harmless() -> None:
    kinds = {"": SuiteOptions, "tasks.": TaskOptions, "contestants.": ContestantOptions}
    texts = {
        prefix + field.name for prefix, kind in kinds.items() for field in msgspec.structs.fields(kind) if is_text(field.type)
    }
    assert texts == {"about", "tasks.source", "contestants.kind", "contestants.python"}, "a new text: does it name code?"
    with pytest.raises(ConfigError, match="there is no kind"):  # before anything is imported
        find_kind(Contestant(name="x", kind=HOSTILE))


def test_a_training_that_another_left_is_evaluated_only_where_the_suite_is_trusted(hostile: Path) -> None:
    (hostile / "got.toml").write_text("seeds = 1\ntasks.CartPole-v1 = {}\ncontestants.x = {}")
    (left,) = order(read(hostile / "got.toml"))
    run = stranger(hostile, "env.id", HOSTILE)
    run.path.rename(run.path.with_name(left.name))
    with pytest.raises(ConfigError, match=r"env.id = hostile:Thing names code"):
        find_kind(left.contestant).policies(left, SuiteFolder(hostile), trusted=False)


@pytest.mark.parametrize("key", ["algorithm.name", "algorithm.network"])
def test_python_refuses_too(key: str, hostile: Path) -> None:
    run = stranger(hostile, key, CODE[key])
    with pytest.raises(headrace.ConfigurationError, match="pass trust=True"):
        headrace.load(run.path)
    config = {"env": {"id": "CartPole-v1"}, "algorithm": {"name": "dqn"} | table(key, CODE[key])["algorithm"]}
    metadata = {"config": msgspec.json.encode(config).decode(), "spec": write_spec(SPEC).decode()}
    checkpoint.write(hostile / "got.safetensors", {"w": np.zeros(1, np.float32)}, metadata)
    for call in (headrace.load, headrace.evaluate):
        with pytest.raises(headrace.ConfigurationError, match="names code"):
            call(hostile / "got.safetensors")
    assert not (hostile / "canary").exists()


@pytest.mark.parametrize("key", ["env.id", "env.wrappers"])
def test_a_policy_from_elsewhere_acts_but_its_environment_is_not_made(key: str, hostile: Path) -> None:
    """Acting imports no environment, so it needs no trust."""
    config = {"env": {"id": "CartPole-v1"} | table(key, CODE[key])["env"], "algorithm": {"name": "dqn", "hidden": 8}}
    space = describe_space(gymnasium.spaces.Box(-1, 1, (4,), np.float32))
    spaces = {"observation": space, "action": describe_space(gymnasium.spaces.Discrete(2))}
    text = {name: msgspec.json.encode(value).decode() for name, value in (("config", config), ("spaces", spaces))}
    spec = ExperienceSpec((observed("observation", (4,), "<f4"),), Categorical(2), 1, 1, 64)
    weights = dict(q_network(spec, DqnConfig(hidden=8)).state_dict())
    checkpoint.write(hostile / "got.safetensors", weights, text | {"spec": write_spec(spec).decode()})
    policy = headrace.load(hostile / "got.safetensors")
    assert policy.predict(np.zeros(4, np.float32)) in (0, 1)
    for given in (policy, hostile / "got.safetensors"):
        with pytest.raises(headrace.ConfigurationError, match=f"{key} = hostile:Thing names code"):
            headrace.evaluate(given)
    assert not (hostile / "canary").exists()
    assert headrace.evaluate(policy, episodes=1, trust=True)["episodes"] == 1 and (hostile / "canary").exists()


def test_what_the_user_trusts_is_imported(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (hostile / "got.toml").write_text(tomli_w.dumps(table("algorithm.name", "hostile:Wrong")))
    assert main(["up", "--config", "got.toml", "--trust-config"]) == 2
    assert "hostile has no Wrong" in capsys.readouterr().err and (hostile / "canary").exists()


def test_an_option_of_what_was_typed_may_not_name_code_either(hostile: Path) -> None:
    values = {"env": {"id": "mario:1-2", "reward": HOSTILE}, "algorithm": {"depth": "3", "loss": "other.losses:huber"}}
    assert trust.code_in(values) == {"env.reward": [HOSTILE], "algorithm.loss": ["other.losses:huber"]}


def test_a_module_that_is_called_like_no_identifier_can_be_imported_and_is_code_too() -> None:
    for text in ("my-parts:Torso", "1st:Torso", "a.b-c:Torso.Inner", "ümlaut:Torso"):
        assert trust.code_in({"algorithm": {"network": text}}) == {"algorithm.network": [text]}
    for text in ("arms/left.urdf", "/arms/left:2.urdf", "1:2", "a: b", "https://x/y"):
        assert not trust.code_in({"env": {"urdf": text}})


def test_built_in_names_are_no_code() -> None:
    assert not trust.code_in(tomllib.loads(write_config(resolve([])).decode()))
    assert not trust.code_in({"env": {"id": "snake:8"}, "learner": {"device": "cuda:1"}, "deploy": {"sinks": ["jsonl"]}})


def test_an_account_without_a_home_has_runs_but_no_marks(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    run = stranger(hostile, "env.id", HOSTILE)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setattr(Path, "home", home)
    trust.mark(run, {"env": {"id": "CartPole-v1"}})
    with pytest.raises(OSError, match="no home folder"):
        trust.mark(run, tomllib.loads(run.config.read_text()))
    aside = runs.set_aside(run)
    assert aside is not None
    runs.remove(RunDir(aside))


def test_the_mark_of_ones_own_run_goes_where_its_folder_goes(hostile: Path) -> None:
    run = stranger(hostile, "env.id", HOSTILE)
    values = tomllib.loads(run.config.read_text())
    trust.mark(run, values)
    trust.check_run(values, run.config, run)
    trust.check_file(values, run.config)
    changed = values | {"env": {"id": "other:Thing"}}
    with pytest.raises(ValueError, match="other:Thing"):
        trust.check_run(changed, run.config, run)
    with pytest.raises(ValueError, match="other:Thing"):
        trust.check_file(changed, run.config)
    aside = runs.set_aside(run)
    assert aside is not None
    trust.check_run(values, aside / "config.toml", RunDir(aside))
    with pytest.raises(ValueError, match="has not made"):
        trust.check_run(values, run.config, run)
    runs.remove(RunDir(aside))
    with pytest.raises(ValueError, match="has not made"):
        trust.check_run(values, aside / "config.toml", RunDir(aside))
