"""House rules that a machine can check: who owns which library, and what is never used.

Who may import whom within the house is said by the contracts in pyproject.toml, which `make lint` checks by import-linter.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import seam_rules

pytestmark = pytest.mark.xdist_group("layers")  # in one process, so that each file is parsed once

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("transport", "replay", "learner", "actors", "deploy", "headrace")
BESIDE = ("tests", "benchmarks")

# Where a library may be imported: a folder ends in a slash. Tests and benchmarks may import what they like.
OWNERS = {
    "zmq": ("transport/sockets/",),
    "cramjam": ("transport/compression.py",),
    "zstandard": ("transport/compression.py",),
    "torch": ("learner/",),
    "triton": ("learner/networks/stack_kernel.py",),
    "gymnasium": ("actors/", "headrace/"),
    "cv2": ("actors/",),
    "nes_py": ("actors/envs/mario/console.py",),
    "gym_super_mario_bros": ("actors/envs/mario/console.py",),
    "gym": ("actors/envs/mario/console.py",),
    "stable_retro": ("actors/envs/mario/retro_console.py",),
    "ale_py": ("actors/envs/atari/env.py",),
    "pybullet": ("actors/envs/robot/backends/bullet.py",),
    "envpool": ("actors/envs/foreign/batched/pool.py",),
    "tensorboard": ("deploy/reporting/sinks/tensorboard.py",),
    "wandb": ("deploy/reporting/sinks/wandb.py",),
    "mlflow": ("deploy/reporting/sinks/mlflow.py",),
    "prometheus_client": ("deploy/reporting/sinks/prometheus.py",),
    "matplotlib": ("actors/drawing.py", "actors/evaluation/picture.py"),
    "imageio_ffmpeg": ("actors/evaluation/video/film.py",),
    "pygame": ("actors/evaluation/video/window.py",),
    "ray": ("deploy/engines/ray.py",),
    "optuna": ("deploy/studies/sweep/study.py",),
    "starlette": ("deploy/views/web/server.py",),
    "uvicorn": ("deploy/views/web/server.py",),
    "huggingface_hub": ("deploy/views/sharing/hub.py",),
    "shtab": ("deploy/cli/machine/completion.py",),
}
# Only inside functions: an extra may be absent, or is slow to import.
LAZY = {
    "ale_py",
    "nes_py",
    "gym_super_mario_bros",
    "gym",
    "stable_retro",
    "pybullet",
    "envpool",
    "ray",
    "optuna",
    "tensorboard",
    "wandb",
    "mlflow",
    "prometheus_client",
    "huggingface_hub",
    "shtab",
    "imageio_ffmpeg",
    "pygame",
    "matplotlib",
}
TORCHLESS = (
    "deploy.cli.main",
    "deploy.supervision.service",
    "deploy.views.web.server",
    "deploy.views.web.report",
    "deploy.supervision.supervisor",
    "replay.__main__",
    "actors.__main__",
    "actors.evaluation.evaluator",
    "actors.evaluation.evaluate",
    "actors.evaluation.demo",
    "learner.saving.export",
    "learner.serving.relay",
    "headrace.policy",
)  # torch costs a process 200 MB and seconds
UNSAFE_MODULES = {
    "pickle", "_pickle", "pickletools", "copyreg", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle",
    "msgpack_numpy", "yaml", "xmlrpc",
}  # fmt: skip
UNSAFE_NAMES = {"eval", "exec", "compile"}
UNSAFE_ATTRIBUTES = {"recv_pyobj", "send_pyobj", "recv_serialized", "send_serialized", "ext_hook", "object_hook", "read_pickle"}
UNSAFE_CALLS = {"torch.save", "os.system", "os.popen", "torch.jit.load", "torch.package.PackageImporter", "torch.export.load"}
UNSAFE_OPTIONS = {"ext_hook", "object_hook", "object_pairs_hook", "dec_hook"}  # of decoders: types of the sender's choice
# Files that people or disks may damage are decoded by transport/files/documents.py alone, which turns every error into one.
# These decode what a process of ours, or this package, has written (pipes, answers, its own data), or what has a checksum.
OWN_JSON = (
    "transport/files/documents.py", "replay/log/state.py", "learner/saving/resume.py", "learner/probe.py",
    "actors/envs/foreign/options.py", "actors/envs/preflight/child.py", "actors/envs/preflight/parent.py",
    "actors/evaluation/lines.py", "actors/evaluation/options.py", "actors/evaluation/pipe.py", "actors/evaluation/snapshots.py",
    "deploy/children.py", "deploy/cli/machine/doctor.py", "deploy/engines/driver.py", "deploy/engines/process.py",
    "deploy/engines/ray.py", "deploy/install.py", "deploy/launch/preflight.py", "deploy/launch/probe.py",
    "deploy/views/sharing/facts.py", "deploy/reporting/sinks/process.py", "deploy/views/web/reference.py",
    "deploy/studies/suite/peer.py", "deploy/studies/suite/runner.py", "deploy/studies/sweep/check.py",
    "deploy/studies/sweep/folder.py", "headrace/run.py",
)  # fmt: skip
JSON_DECODERS = {"json.load", "json.loads", "msgspec.json.decode", "msgspec.json.Decoder", "json.decode", "json.Decoder"}
# These make pickles, to show that nobody reads them.
HOSTILE = ("tests/chaos/test_code_execution.py", "tests/chaos/test_hostile_files.py", "tests/learner/devices/test_redirect.py")
# What reads what others have written checks it by raising, not by assert, which `python -O` leaves out.
DECODERS = (
    "transport/messages/codec.py", "transport/sockets/channel.py", "transport/compression.py",
    "transport/experience.py",
    "transport/slab.py", "transport/sockets/server.py", "transport/sockets/quarantine.py", "transport/run_dir.py",
    "replay/table/inbox.py",
    "replay/log/segments.py", "replay/log/state.py", "replay/server/learners.py", "replay/server/writers.py",
    "learner/weights/checkpoint.py", "learner/weights/follow.py", "learner/serving/publish.py",
    "learner/serving/serve.py", "learner/serving/relay.py",
    "deploy/config/files.py", "deploy/config/layers.py", "deploy/runs.py",
    "deploy/places/remote/agent.py", "deploy/places/remote/host.py", "deploy/places/remote/host_folder.py",
    "deploy/places/remote/hosts.py",
)  # fmt: skip


class Import(NamedTuple):
    """One imported name: `module`, the `name` taken from it (or nothing), and where."""

    module: str
    name: str
    line: int
    in_function: bool
    only_for_types: bool

    @property
    def top(self) -> str:
        """The package at the front of the name."""
        return self.module.partition(".")[0]


def imports(tree: ast.AST, calls: bool, in_function: bool = False, only_for_types: bool = False) -> Iterator[Import]:
    """Every import below a node; a relative one keeps its dots. `calls`: `import_module("…")` and `__import__("…")`, too."""
    for node in ast.iter_child_nodes(tree) if calls else statements(tree):
        deeper = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        typing = only_for_types or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, "", node.lineno, deeper, typing)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield Import("." * node.level + (node.module or ""), alias.name, node.lineno, deeper, typing)
        elif isinstance(node, ast.Call) and node.args and called(node) in ("import_module", "__import__"):
            if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                yield Import(node.args[0].value, "", node.lineno, deeper, typing)
        yield from imports(node, calls, deeper, typing)


def statements(node: ast.AST) -> list[ast.AST]:
    """Those directly below a statement."""
    return [below for block in ("body", "orelse", "finalbody", "handlers", "cases") for below in getattr(node, block, ())]


@cache
def imports_of(source: str) -> tuple[Import, ...]:
    """Every import of a file."""
    return tuple(imports(seam_rules.parse(source), "import_module" in source or "__import__" in source))


def called(call: ast.Call) -> str:
    """The last name of what is called: `load` for np.load(…)."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""


def dotted(node: ast.expr) -> str:
    """`torch.load` of that name as it is written; empty for anything but names."""
    if isinstance(node, ast.Attribute):
        return f"{before}.{node.attr}" if (before := dotted(node.value)) else ""
    return node.id if isinstance(node, ast.Name) else ""


def is_constant(node: ast.expr | None, value: bool) -> bool:
    """Whether an argument is this constant, or is not given."""
    return node is None or (isinstance(node, ast.Constant) and node.value is value)


def owner_faults(path: str, source: str) -> list[str]:
    """Libraries imported outside the file or folder that owns them, and simulators imported before they are needed."""
    faults = []
    for found in imports_of(source):
        owners = OWNERS.get(found.top)
        if owners is None or path.partition("/")[0] not in LAYERS:
            continue
        if not path.startswith(owners):
            faults.append(f"{path}:{found.line} only {' and '.join(owners)} may import {found.top}")
        elif found.top in LAZY and not found.in_function and not found.only_for_types:
            faults.append(f"{path}:{found.line} import {found.top} inside the function that needs it")
    return faults


def unsafe_faults(path: str, source: str) -> list[str]:
    """Whatever would run what it reads: pickle in any dress, eval, a shell; and input that is checked by assert."""
    if path in HOSTILE:
        return []
    faults = []
    for node in ast.walk(seam_rules.parse(source)):
        if isinstance(node, ast.Assert) and path in DECODERS:
            faults.append(f"{path}:{node.lineno} a decoder raises an error of its own instead of asserting")
        if isinstance(node, ast.Attribute) and node.attr in UNSAFE_ATTRIBUTES:
            faults.append(f"{path}:{node.lineno} {node.attr} pickles")
        if not isinstance(node, ast.Call):
            continue
        options, name = {keyword.arg: keyword.value for keyword in node.keywords}, dotted(node.func)
        if isinstance(node.func, ast.Name) and node.func.id in UNSAFE_NAMES:
            faults.append(f"{path}:{node.lineno} {node.func.id} runs what it reads")
        if not is_constant(options.get("allow_pickle"), False):
            faults.append(f"{path}:{node.lineno} allow_pickle must stay False")
        elif name in ("np.load", "numpy.load") and "allow_pickle" not in options:
            faults.append(f"{path}:{node.lineno} write allow_pickle=False, whatever the default of numpy is")
        if not is_constant(options.get("shell"), False):
            faults.append(f"{path}:{node.lineno} shell must stay False")
        if name in JSON_DECODERS and path.startswith(LAYERS) and path not in OWN_JSON:
            faults.append(f"{path}:{node.lineno} a file that may be damaged is decoded by transport/files/documents.py")
        if name in UNSAFE_CALLS:
            faults.append(f"{path}:{node.lineno} {name} pickles, or runs what it reads")
        faults += [f"{path}:{node.lineno} {option} makes what the sender likes" for option in UNSAFE_OPTIONS & options.keys()]
        if name == "torch.load" and not is_constant(options.get("weights_only", node), True):
            faults.append(f"{path}:{node.lineno} torch.load unpickles without weights_only=True")
    faults += [f"{path}:{found.line} {found.top} is never used" for found in imports_of(source) if found.top in UNSAFE_MODULES]
    return faults


def package_faults(path: str, source: str) -> list[str]:
    """An __init__.py that holds anything but a docstring; that of headrace/ exports names, lazily."""
    if not path.endswith("__init__.py") or not path.startswith(LAYERS) or path == "headrace/__init__.py":
        return []
    tree = seam_rules.parse(source)
    return [] if len(tree.body) == 1 and ast.get_docstring(tree) else [f"{path}: a docstring, and nothing else"]


def import_graph(sources: dict[str, str], at_run_time: bool = False) -> dict[str, set[str]]:
    """Which module imports which of ours and, by top name, of others. At run time: only what importing it executes."""
    names = {module_name(path): path for path in sources}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        found = imports_of(sources[path])
        kept = [one for one in found if not at_run_time or not (one.in_function or one.only_for_types)]
        targets = {f"{one.module}.{one.name}" if f"{one.module}.{one.name}" in names else one.module for one in kept}
        graph[name] = {target if target in names else target.partition(".")[0] for target in targets} - {name}
    return graph


def module_name(path: str) -> str:
    """replay/client.py -> replay.client; replay/__init__.py -> replay."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Every module that importing `start` leads to."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph.get(waiting.pop(), set()) - seen:
            seen.add(target)
            waiting.append(target)
    return seen


def cycles(graph: dict[str, set[str]]) -> list[str]:
    """The modules that lead back to themselves."""
    return sorted(module for module in graph if module in reached(graph, module))


@cache
def tree_sources() -> dict[str, str]:
    """Every Python file of the project by its path from the root."""
    files: Iterable[Path] = (file for folder in (*LAYERS, *BESIDE) for file in sorted((ROOT / folder).rglob("*.py")))
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


RULES = [owner_faults, unsafe_faults, package_faults]


@cache
def faults_of_the_tree() -> dict[str, list[str]]:
    """By the name of a rule."""
    found: dict[str, list[str]] = {rule.__name__: [] for rule in RULES}
    for path, source in tree_sources().items():
        for rule in RULES:
            found[rule.__name__] += rule(path, source)
    return found


@pytest.mark.parametrize("rule", [rule.__name__ for rule in RULES])
def test_every_file_keeps_the_rule(rule: str) -> None:
    assert faults_of_the_tree()[rule] == []


def test_no_module_leads_back_to_itself() -> None:
    ours = {path: source for path, source in tree_sources().items() if path.partition("/")[0] in LAYERS}
    assert cycles(import_graph(ours)) == []


def test_the_small_processes_start_without_torch() -> None:
    graph = import_graph(tree_sources(), at_run_time=True)
    assert [start for start in TORCHLESS if "torch" in reached(graph, start)] == []


def test_what_every_process_asks_of_an_algorithm_is_to_be_had_without_torch() -> None:
    graph = import_graph(tree_sources(), at_run_time=True)
    parts = ("base", "config", "algorithm", "acting")
    asked = [name for name in graph if name.startswith("learner.algorithms.") and name.rpartition(".")[2] in parts]
    assert len(asked) >= 1 + 3 * 3, asked
    assert [name for name in asked if "torch" in reached(graph, name)] == []


def test_the_table_and_its_log_reach_no_socket() -> None:
    graph = import_graph(tree_sources(), at_run_time=True)
    own = [name for name in graph if name.startswith(("replay.table.", "replay.log."))]
    assert len(own) > 10 and [name for name in own if "zmq" in reached(graph, name)] == []


def test_the_root_is_no_package() -> None:
    assert not (ROOT / "__init__.py").exists()
    assert all(f"{layer}/__init__.py" in tree_sources() for layer in LAYERS)


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (owner_faults, "transport/metrics.py", "import zmq.asyncio"),
        (owner_faults, "replay/log/segment_log.py", "from cramjam import lz4"),
        (owner_faults, "replay/table/ring.py", "import torch.nn as nn"),
        (owner_faults, "transport/experience.py", "import torch"),
        (owner_faults, "actors/agent.py", "def f():\n    import torch"),
        (owner_faults, "deploy/cli/main.py", "def f():\n    import gymnasium"),
        (owner_faults, "learner/networks/convolutional.py", "import cv2"),
        (owner_faults, "actors/envs/make.py", "def f():\n    import nes_py"),
        (owner_faults, "actors/envs/mario/console.py", "from nes_py import NESEnv"),
        (owner_faults, "deploy/supervision/supervisor.py", "import ray"),
        (unsafe_faults, "transport/a.py", "import pickle"),
        (unsafe_faults, "tests/a.py", "from marshal import loads"),
        (unsafe_faults, "actors/a.py", "__import__('cloudpickle')"),
        (unsafe_faults, "transport/a.py", "socket.recv_pyobj()"),
        (unsafe_faults, "transport/a.py", "send = socket.send_pyobj"),
        (unsafe_faults, "replay/a.py", "np.load(path, allow_pickle=True)"),
        (unsafe_faults, "deploy/a.py", "eval(text)"),
        (unsafe_faults, "learner/a.py", "torch.load(path)"),
        (unsafe_faults, "learner/a.py", "torch.load(path, weights_only=False)"),
        (unsafe_faults, "learner/a.py", "torch.save(network, path)"),
        (unsafe_faults, "replay/a.py", "np.load(path)"),
        (unsafe_faults, "deploy/a.py", "subprocess.run(text, shell=True)"),
        (unsafe_faults, "deploy/a.py", "os.system(text)"),
        (unsafe_faults, "deploy/a.py", "def f():\n    import yaml"),
        (unsafe_faults, "transport/a.py", "import msgpack_numpy"),
        (unsafe_faults, "transport/a.py", "msgpack.unpackb(text, ext_hook=hook)"),
        (unsafe_faults, "transport/messages/codec.py", "assert length < 9"),
        (package_faults, "replay/__init__.py", '"""Replay."""\nimport numpy'),
        (package_faults, "actors/envs/__init__.py", ""),
    ],
)
def test_a_breach_is_found(rule, path: str, source: str) -> None:  # type: ignore[no-untyped-def]
    assert len(rule(path, source)) == 1


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (owner_faults, "transport/sockets/channel.py", "import zmq"),
        (owner_faults, "actors/envs/mario/console.py", "def f():\n    from nes_py import NESEnv"),
        (owner_faults, "tests/transport/a.py", "import zmq"),
        (unsafe_faults, "learner/a.py", "network.eval()\ntorch.load(path, weights_only=True)"),
        (unsafe_faults, "replay/a.py", "np.load(path, allow_pickle=False)"),
        (unsafe_faults, "replay/table/ring.py", "assert self.size == 3"),
        (unsafe_faults, "deploy/a.py", "subprocess.run(['a'], shell=False)"),
        (package_faults, "replay/__init__.py", '"""Replay."""'),
    ],
)
def test_what_is_allowed_is_not_reported(rule, path: str, source: str) -> None:  # type: ignore[no-untyped-def]
    assert rule(path, source) == []


def test_a_cycle_is_found_through_packages_and_functions() -> None:
    sources = {
        "replay/a.py": "from replay import b",
        "replay/b.py": "def f():\n    import replay.c",
        "replay/c.py": "from replay.a import thing",
        "replay/d.py": "import replay.a",
    }
    assert cycles(import_graph(sources)) == ["replay.a", "replay.b", "replay.c"]


def test_torch_is_found_behind_other_modules_but_not_inside_functions() -> None:
    sources = {
        "deploy/cli/main.py": "from learner.devices import capabilities",
        "learner/devices/capabilities.py": "import torch.nn",
        "deploy/lazy.py": "def f():\n    import torch",
    }
    graph = import_graph(sources, at_run_time=True)
    assert "torch" in reached(graph, "deploy.cli.main")
    assert "torch" not in reached(graph, "deploy.lazy")


# ---- seams: nobody outside its folder asks which algorithm, network or environment family it is


def test_nothing_asks_what_a_seam_should_declare() -> None:
    known = seam_rules.read_known(seam_rules.KNOWN.read_text())
    present = seam_rules.all_breaches()
    counted = seam_rules.count(present)
    new = [breach for breach in present if counted[breach.path, breach.kind] > known[breach.path, breach.kind]]
    assert new == [], "declare it behind the seam instead of asking (SEAMS in ARCHITECTURE.md)"
    gone = known - counted
    assert not gone, "mended: run `python -m tests.seam_rules --shrink`"


def test_the_list_of_known_breaches_is_of_the_form_that_is_read() -> None:
    text = seam_rules.KNOWN.read_text()
    assert seam_rules.write_known(seam_rules.read_known(text)) == text


DQN = "from learner.algorithms.dqn.config import DqnConfig\n"


@pytest.mark.parametrize(
    ("kind", "path", "source"),
    [
        ("type", "actors/a.py", DQN + "isinstance(config, DqnConfig)"),
        ("type", "actors/a.py", DQN + "isinstance(config, (int, DqnConfig))"),
        ("type", "deploy/a.py", DQN + "isinstance(config, DqnConfig | None)"),
        ("type", "deploy/a.py", DQN + "issubclass(found, DqnConfig)"),
        ("type", "deploy/a.py", "def f():\n    from learner.algorithms.dqn.config import DqnConfig as C\n    isinstance(c, C)"),
        ("type", "learner/loop.py", "from learner.algorithms.ppo import update\nisinstance(algorithm, update.Ppo)"),
        ("type", "learner/loop.py", "import learner.algorithms.ppo.update as ppo\nisinstance(algorithm, ppo.Ppo)"),
        ("type", "learner/algorithms/make.py", DQN + "isinstance(config, DqnConfig)"),
        ("type", "learner/inference/a.py", "from learner.networks.convolutional import Torso\nisinstance(torso, Torso)"),
        ("type", "actors/actor.py", "from actors.envs.robot.env import Reach\nisinstance(env, Reach)"),
        ("type", "deploy/a.py", DQN + "match config:\n    case DqnConfig():\n        pass"),
        ("type", "deploy/a.py", DQN + "type(config) is DqnConfig"),
        ("type", "deploy/a.py", DQN + "type(config) == DqnConfig"),
        ("type", "deploy/a.py", DQN + "config.__class__ is DqnConfig"),
        ("type", "deploy/a.py", DQN + "type(config) in (DqnConfig, int)"),
        ("class name", "deploy/a.py", "type(config).__name__ == 'DqnConfig'"),
        ("class name", "deploy/a.py", "found.__class__.__name__ != 'Ppo'"),
        ("class name", "learner/loop.py", "name = type(self.algorithm).__name__.lower()"),
        ("attribute", "actors/actor.py", "hasattr(self._policy, 'explore_with')"),
        ("attribute", "learner/loop.py", "hasattr(algorithm, 'prepare')"),
        ("attribute", "actors/evaluation/a.py", "getattr(env.unwrapped, 'figures', None)"),
        ("name", "deploy/a.py", "config.algorithm.name == 'dqn'"),
        ("name", "deploy/a.py", "'ppo' != config.algorithm.name"),
        ("name", "learner/loop.py", "name == 'sac'"),
        ("name", "learner/algorithms/policies.py", "name == 'sac'"),
        ("name", "actors/actor.py", "config.id == 'mario'"),
        ("name", "actors/envs/make.py", "name == 'robot'"),
        ("name", "deploy/a.py", "env.startswith('snake')"),
        ("name", "deploy/a.py", "env == 'robot:flat'"),
        ("name", "replay/a.py", "config.selector == 'fifo'"),
        ("name", "replay/a.py", "FIFO = 'fifo'\nconfig.selector == FIFO"),
        ("name", "actors/a.py", "match name:\n    case 'ppo':\n        pass"),
        ("name", "learner/inference/a.py", "config.network == 'mlp'"),
        ("names", "deploy/a.py", "ON_POLICY = {'ppo', 'a2c'}"),
        ("names", "deploy/a.py", "ALGORITHMS = {'dqn': 1}"),
        ("names", "replay/config.py", "Literal['prioritised', 'fifo']"),
        ("names", "actors/envs/make.py", "OWNERS = ('mario', 'robot')"),
        ("metric", "replay/__main__.py", "'dropped_chunks' in record"),
        ("metric", "deploy/a.py", "'clip_fraction' not in learner"),
        ("metric", "deploy/a.py", "record.get('temperature') is not None"),
    ],
)
def test_a_question_about_what_is_behind_a_seam_is_found(kind: str, path: str, source: str) -> None:
    found = seam_rules.breaches({path: source})
    assert {breach.kind for breach in found} >= {kind}, found


def test_a_question_after_an_option_that_only_some_have_is_found() -> None:
    config = "class SacConfig(Struct):\n    hindsight: int = 4\n    gamma: float = 0.9"
    others = "class LearnerConfig(Struct):\n    gamma: float = 0.9"
    asks = "'hindsight' in names or 'gamma' in names"
    tree = {"learner/algorithms/sac/config.py": config, "learner/config.py": others, "deploy/a.py": asks}
    assert [(breach.kind, breach.path) for breach in seam_rules.breaches(tree)] == [("option", "deploy/a.py")]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("learner/algorithms/dqn/algorithm.py", DQN + "isinstance(config, DqnConfig) and name == 'dqn'"),
        ("learner/networks/base.py", "from learner.networks.convolutional import Torso\nisinstance(torso, Torso)"),
        ("learner/networks/base.py", "isinstance(module, nn.Linear)"),
        ("learner/algorithms/base.py", "BUILTIN = {'dqn': 'learner.algorithms.dqn.algorithm:Dqn'}"),
        ("actors/envs/mario/env.py", "name == 'mario'"),
        ("actors/a.py", "from actors.errors import EnvError\nisinstance(error, EnvError)"),
        ("actors/a.py", "from transport.experience import Categorical\nisinstance(spec.action, Categorical)"),
        ("actors/a.py", "import os\nhasattr(os, 'nice') and getattr(error, 'strerror', None)"),
        ("deploy/a.py", "f'{type(error).__name__}: {error}'"),
        ("deploy/a.py", "algorithm = find_algorithm('dqn')"),
        ("deploy/a.py", "'episode_return' in record"),
        ("transport/files/renamed.py", "{'replay.selector': 'fifo'}['replay.selector'] == 'fifo'"),
        ("tests/a.py", DQN + "isinstance(config, DqnConfig)"),
    ],
)
def test_what_may_be_asked_is_not_reported(path: str, source: str) -> None:
    assert seam_rules.breaches({path: source}) == []


def test_a_folder_with_too_many_siblings_is_found() -> None:
    paths = [f"replay/log/file{n}.py" for n in range(seam_rules.MOST_SIBLINGS)] + ["replay/log/__init__.py", "tests/log/a.py"]
    assert seam_rules.crowded(paths) == []
    assert [breach.path for breach in seam_rules.crowded([*paths, "replay/log/more/a.py"])] == ["replay/log"]
