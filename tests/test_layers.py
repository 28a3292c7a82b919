"""House rules that neither ruff nor import-linter can check; pyproject.toml has the others.

Above all: outside its folder nobody asks which algorithm, network or environment it has before it.
"""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import grimp
import pytest

pytestmark = pytest.mark.xdist_group("layers")  # in one process, so that each file is parsed once

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("transport", "replay", "learner", "actors", "deploy", "headrace")
TORCHLESS = """
    deploy.cli.main deploy.supervision.service deploy.views.web.server deploy.views.web.report deploy.views.serving.server
    replay.__main__ actors.__main__ learner.__main__ learner.probe
    actors.evaluation.evaluator actors.evaluation.evaluate actors.evaluation.demo learner.saving.export learner.serving.relay
    headrace.policy
""".split()  # torch costs a process 200 MB and seconds
# What runs what it reads, or makes objects of the sender's choice, where ruff has no rule.
UNSAFE = re.compile(
    r"\b(recv_pyobj|send_pyobj|recv_serialized|send_serialized|read_pickle)\b"
    r"|(?<![\w.])(torch\.save|torch\.jit\.load|torch\.export\.load|torch\.package|os\.system|os\.popen)\b"
    r"|\b(ext_hook|object_hook|object_pairs_hook|dec_hook)\s*="
    r"|allow_pickle\s*=\s*True|weights_only\s*=\s*False|\bnp\.load\((?!.*allow_pickle=False)|\btorch\.load\((?!.*weights_only=True)"
)
MAKES_PICKLES = re.compile(r"tests/(.*/test_hostile_files|.*/test_redirect|test_layers)\.py")
MOST_SIBLINGS = 12
CATALOGUES = ("deploy/config/presets", "deploy/views/sharing/zoo")  # as many as there are
HOMES = ("learner/algorithms/", "learner/networks/", "actors/envs/")  # each subject may speak of itself
# Short names, and where they may be compared: in the folder of what bears the name. `fifo` is no name any more.
NAMES = {
    **{name: (f"learner/algorithms/{name}/",) for name in ("dqn", "ppo", "pqn", "r2d2", "reppo", "sac")},
    **dict.fromkeys(("nature", "nature_batchnorm", "mlp"), ("learner/networks/", "learner/algorithms/")),
    "linear": ("learner/networks/", "learner/algorithms/", "learner/program/", "actors/exports/"),  # also the kind of a layer
    **{name: (f"actors/envs/{name}/", f"actors/envs/{name}.py") for name in ("mario", "robot", "snake", "atari")},
    "fifo": (),
}
# Fast paths are chosen by what a module is made of: these look at its parts, never at which network it is.
LOOK_INSIDE = ("learner/inference/", "learner/algorithms/")
NETWORK_PARTS = tuple(f"learner.networks.{name}" for name in ("base", "inputs", "parts", "recurrent"))
METRICS = set(
    "dropped_chunks td q clip_fraction kl entropy policy_loss value_loss temperature ratio_first explained_variance".split()
)  # that not every algorithm has
SUBJECTS = ("algorithm", "network", "policy", "env", "family", "torso", "config", "update")  # words of a variable's name


@cache
def sources(*folders: str) -> dict[str, str]:
    """Python files of some folders by their path from the root."""
    files = (file for folder in folders for file in sorted((ROOT / folder).rglob("*.py")))
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


def imported(modules: Sequence[str], forbidden: str) -> str:
    """The first of `modules` that brings a library along when it is imported; empty where none does."""
    lines = [f"import {name}\nif {forbidden!r} in sys.modules: sys.exit({name!r})" for name in modules]
    found = subprocess.run([sys.executable, "-c", "\n".join(["import sys", *lines])], capture_output=True, text=True, cwd=ROOT)
    return found.stderr.strip()


def test_the_small_processes_start_without_torch() -> None:
    assert imported(TORCHLESS, "torch") == ""


def test_what_every_process_asks_of_an_algorithm_and_its_update_in_arrays_are_to_be_had_without_torch() -> None:
    names = "base|config|algorithm|acting|arrays|array_update|known"
    files = [path for path in sources("learner") if re.fullmatch(rf"learner/algorithms/.*\b({names})\.py", path)]
    assert len(files) >= 1 + 4 * 5 and imported([path[:-3].replace("/", ".") for path in files], "torch") == ""


def test_the_table_and_its_log_reach_no_socket() -> None:
    files = [path for path in sources("replay") if path.startswith(("replay/table/", "replay/log/"))]
    assert imported([path[:-3].replace("/", ".").removesuffix(".__init__") for path in files], "zmq") == ""


def test_no_module_leads_back_to_itself() -> None:
    graph = grimp.build_graph(*LAYERS, exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) - {module} for module in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()


def test_a_package_holds_a_docstring_and_nothing_more() -> None:
    """That of headrace/ exports names, lazily."""
    packages = {path: source for path, source in sources(*LAYERS).items() if path.endswith("__init__.py")}
    full = [
        path for path, source in packages.items() if len(ast.parse(source).body) != 1 or not ast.get_docstring(ast.parse(source))
    ]
    assert full == ["headrace/__init__.py"]
    assert not (ROOT / "__init__.py").exists() and all(f"{layer}/__init__.py" in packages for layer in LAYERS)


def test_nothing_runs_what_it_reads() -> None:
    files = sources(*LAYERS, "tests", "benchmarks").items()
    assert [path for path, source in files if UNSAFE.search(source) and not MAKES_PICKLES.fullmatch(path)] == []


def test_no_folder_has_more_siblings_than_one_finds_the_way_in() -> None:
    entries: dict[str, set[str]] = {}
    for layer in LAYERS:
        for file in (ROOT / layer).rglob("*"):
            *parts, name = file.relative_to(ROOT).parts
            if file.is_file() and "__pycache__" not in parts and name not in ("__init__.py", "py.typed"):
                for depth in range(2, len(parts) + 1):
                    entries.setdefault("/".join(parts[:depth]), set()).add([*parts, name][depth])
    assert {
        folder: len(names) for folder, names in entries.items() if len(names) > MOST_SIBLINGS and folder not in CATALOGUES
    } == {}


# ---- seams: nobody outside its folder asks which algorithm, network or environment family it is


class Breach(NamedTuple):
    """Something that is asked where it should be declared."""

    path: str
    kind: str
    text: str


class Finder(ast.NodeVisitor):
    """The breaches of one file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.modules: dict[str, str] = {}  # local name -> the module that it is or is from
        self.found: list[Breach] = []

    def report(self, kind: str, node: ast.AST) -> None:
        self.found.append(Breach(self.path, kind, ast.unparse(node)[:100]))

    def visit_Import(self, node: ast.Import) -> None:
        self.modules.update({alias.asname or alias.name: alias.name for alias in node.names})

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.modules.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})

    def of_a_seam(self, node: ast.expr) -> bool:
        """True for a class, or several, of a seam's folder that is not this file's."""
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return any(map(self.of_a_seam, node.elts))
        if isinstance(node, ast.BinOp):
            return self.of_a_seam(node.left) or self.of_a_seam(node.right)
        first, _, rest = ast.unparse(node).partition(".")
        module, _, name = ".".join(filter(None, [self.modules.get(first, ""), rest])).rpartition(".")
        path = module.replace(".", "/") + "/"
        home = next((home for home in HOMES if path.startswith(home)), "")
        folders = path.removeprefix(home).split("/")
        own = home if len(folders) <= 2 else f"{home}{folders[0]}/"
        may = (own, *LOOK_INSIDE) if module in NETWORK_PARTS else (own,)
        return bool(home) and name[:1].isupper() and not name.endswith("Error") and not self.path.startswith(may)

    def is_name(self, node: ast.expr) -> bool:
        """True for a short name of a seam that this file may not speak of. Old names are only read to be replaced."""
        word = str(node.value).partition(":")[0] if isinstance(node, ast.Constant) else ""
        migrates = self.path in ("transport/files/renamed.py", "learner/saving/older.py")
        return word in NAMES and not self.path.startswith(NAMES[word]) and not migrates

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func).rpartition(".")[2]
        if name in ("isinstance", "issubclass") and self.of_a_seam(node.args[1]):
            self.report("type", node)
        if (
            name in ("hasattr", "getattr")
            and len(node.args) == (2 if name == "hasattr" else 3)
            and not self.path.startswith(HOMES)
        ):
            if ast.unparse(node.args[0]).rpartition(".")[2].strip("_") in (*SUBJECTS, "unwrapped"):
                self.report("attribute", node)
        if name in ("startswith", "endswith", "removeprefix") and node.args and self.is_name(node.args[0]):
            self.report("name", node)
        self.generic_visit(node)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        if self.of_a_seam(node.cls):
            self.report("type", node.cls)
        self.generic_visit(node)

    def visit_MatchValue(self, node: ast.MatchValue) -> None:
        if self.is_name(node.value):
            self.report("name", node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        if any(map(self.is_name, sides)):
            self.report("name", node)
        if re.search(r"\btype\(|\.__class__\b", ast.unparse(node)) and any(map(self.of_a_seam, sides)):
            self.report("type", node)
        asked = node.left.value if isinstance(node.left, ast.Constant) else None
        if asked in METRICS and isinstance(node.ops[0], ast.In | ast.NotIn) and not self.path.startswith(HOMES):
            self.report("metric", node)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        of = re.fullmatch(r"type\((.*)\)|(.*)\.__class__", ast.unparse(node.value))
        subject = (of[1] or of[2]).rpartition(".")[2].strip("_") if of else ""
        if node.attr in ("__name__", "__qualname__") and subject in SUBJECTS and not self.path.startswith(HOMES):
            self.report("class name", node)
        self.generic_visit(node)


def breaches(files: dict[str, str]) -> Iterator[Breach]:
    for path, source in files.items():
        finder, tree = Finder(path), ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                finder.visit(node)
        finder.visit(tree)
        yield from finder.found


def test_nothing_asks_what_a_seam_should_declare() -> None:
    assert list(breaches(sources(*LAYERS))) == [], "declare it behind the seam instead of asking (ARCHITECTURE.md, How to add)"


@pytest.mark.parametrize(
    ("kind", "path", "source"),
    [
        ("type", "deploy/a.py", "from learner.algorithms.dqn.config import DqnConfig as C\nisinstance(config, (int, C))"),
        ("type", "learner/loop.py", "from learner.algorithms.ppo import update\nisinstance(algorithm, update.Ppo)"),
        ("type", "actors/a.py", "from actors.envs.robot.env import Reach\ntype(env) is Reach"),
        ("class name", "learner/loop.py", "name = type(self.algorithm).__name__.lower()"),
        ("attribute", "actors/actor.py", "hasattr(self._policy, 'explore_with')"),
        ("name", "deploy/a.py", "config.algorithm.name == 'dqn'"),
        ("name", "deploy/a.py", "env.startswith('snake')"),
        ("name", "actors/a.py", "match name:\n    case 'ppo':\n        pass"),
        ("metric", "deploy/a.py", "'clip_fraction' not in learner"),
    ],
)
def test_a_question_about_what_is_behind_a_seam_is_found(kind: str, path: str, source: str) -> None:
    assert {breach.kind for breach in breaches({path: source})} == {kind}


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("learner/algorithms/dqn/a.py", "from learner.algorithms.dqn.config import DqnConfig\nisinstance(c, DqnConfig)"),
        ("actors/a.py", "from actors.errors import EnvError\nisinstance(error, EnvError)"),
        ("deploy/a.py", "algorithm = find_algorithm('dqn')"),
    ],
)
def test_what_may_be_asked_is_not_reported(path: str, source: str) -> None:
    assert list(breaches({path: source})) == []
