"""Where code asks which algorithm, network or environment family it has before it, outside their folders, in any form.

`python -m tests.seam_rules` prints every breach; `--shrink` takes those that are gone out of known_breaches.txt.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# A few trees are kept, for the rules that look at the same file: with all, the garbage collector takes longer than the parser.
parse = lru_cache(maxsize=8)(ast.parse)
LAYERS = ("transport", "replay", "learner", "actors", "deploy", "headrace")
KNOWN = Path(__file__).with_name("known_breaches.txt")
MOST_SIBLINGS = 12
HOMES = ("learner/algorithms/", "learner/networks/", "actors/envs/")  # each subject may speak of itself
# Short names, and where they may be compared: in the folder of what bears the name. `fifo` is no name any more.
NAMES = {
    **{name: (f"learner/algorithms/{name}/",) for name in ("dqn", "ppo", "pqn", "r2d2", "sac")},
    **dict.fromkeys(("nature", "nature_batchnorm", "mlp"), ("learner/networks/", "learner/algorithms/")),
    "linear": ("learner/networks/", "learner/algorithms/", "learner/inference/"),  # also the kind of a layer
    **{name: (f"actors/envs/{name}/", f"actors/envs/{name}.py") for name in ("mario", "robot", "snake", "atari")},
    "fifo": (),
}
# Fast paths are chosen by what a module is made of: these look at its parts, never at which network it is.
LOOK_INSIDE = ("learner/inference/", "learner/updates/dense.py")
NETWORK_PARTS = tuple(f"learner.networks.{name}" for name in ("base", "inputs", "parts", "recurrent"))
TABLES = tuple(f"{home}base.py" for home in HOMES)  # of built-in names
# Old names are only ever read to be replaced.
MIGRATIONS = ("transport/files/renamed.py", "learner/saving/older.py", "deploy/config/migration.py")
METRICS = {
    "dropped_chunks", "td", "q", "clip_fraction", "kl", "entropy", "policy_loss", "value_loss", "temperature", "ratio_first",
    "explained_variance", "epsilon_highest", "epsilon_lowest",
}  # fmt: skip  # that not every algorithm has
# A thing of these names is neither an algorithm nor a network nor an environment, whatever it is asked for.
OTHERS = {"error", "parsed", "stream", "_stream", "thing", "found", "process", "message", "socket"}
SUBJECTS = ("algorithm", "network", "policy", "env", "family", "torso", "config", "update")  # words of a variable's name
COLLECTIONS = ast.Tuple | ast.List | ast.Set


class Breach(NamedTuple):
    """Something that is asked where it should be declared."""

    path: str
    kind: str
    line: int
    text: str


def home_of(module: str) -> str:
    """The folder in which the classes of a module may be told apart: empty for modules that are no seam's."""
    path = module.replace(".", "/") + "/"
    for home in HOMES:
        if path.startswith(home):
            parts = path.removeprefix(home).split("/")
            return home if len(parts) <= 2 else f"{home}{parts[0]}/"
    return ""


class _Finder(ast.NodeVisitor):
    """The breaches of one file."""

    def __init__(self, path: str, constants: set[str], options: set[str]) -> None:
        self.path, self.constants, self.options = path, constants, options
        self.modules: dict[str, str] = {}  # what is imported: local name -> module
        self.members: dict[str, str] = {}  # local name -> the module that it is from
        self.found: list[Breach] = []

    def report(self, kind: str, node: ast.AST) -> None:
        line = getattr(node, "lineno", 0)
        self.found.append(Breach(self.path, kind, line, " ".join(ast.unparse(node).split())[:100]))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.modules[alias.asname or alias.name.partition(".")[0]] = alias.name

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self.members[alias.asname or alias.name] = node.module or ""
            self.modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    # ---- classes

    def of_a_seam(self, node: ast.expr) -> bool:
        """Whether an expression is a class, or several, of a seam's folder that is not this file's."""
        if isinstance(node, COLLECTIONS):
            return any(map(self.of_a_seam, node.elts))
        if isinstance(node, ast.BinOp):
            return self.of_a_seam(node.left) or self.of_a_seam(node.right)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module, name = self.modules.get(node.value.id, ""), node.attr
        elif isinstance(node, ast.Name):
            module, name = self.members.get(node.id, ""), node.id
        else:
            return False
        home = home_of(module)
        may = (home, *LOOK_INSIDE) if module in NETWORK_PARTS else (home,)
        return bool(home) and name[:1].isupper() and not name.endswith("Error") and not self.path.startswith(may)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in ("isinstance", "issubclass") and len(node.args) == 2 and self.of_a_seam(node.args[1]):
            self.report("type", node)
        asks = name == "hasattr" or (name == "getattr" and len(node.args) == 3)
        if asks and node.args and not self.path.startswith(HOMES) and self.may_be_a_subject(node.args[0]):
            self.report("attribute", node)
        if name in ("startswith", "endswith", "removeprefix") and node.args and self.is_name(node.args[0]):
            self.report("name", node)
        self.generic_visit(node)

    def may_be_a_subject(self, node: ast.expr) -> bool:
        """Neither a module nor something of another kind."""
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in self.modules and root.id not in self.members:
            return False
        if isinstance(root, ast.Name) and self.members.get(root.id):
            return False
        last = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        return bool(last) and last not in OTHERS

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        if self.of_a_seam(node.cls):
            self.report("type", node.cls)
        self.generic_visit(node)

    def visit_MatchValue(self, node: ast.MatchValue) -> None:
        if self.is_name(node.value):
            self.report("name", node.value)

    # ---- names

    def is_name(self, node: ast.expr) -> bool:
        """A short name of a seam, written out or by a constant, that this file may not speak of."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            word = node.value.partition(":")[0]
            return word in NAMES and not self.path.startswith(NAMES[word]) and self.path not in MIGRATIONS
        if isinstance(node, ast.Name | ast.Attribute):
            own = node.id if isinstance(node, ast.Name) else node.attr
            return own in self.constants and not self.path.startswith(HOMES)
        return False

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        if any(map(self.is_name, sides)):
            self.report("name", node)
        if any(
            isinstance(side, ast.Call) and isinstance(side.func, ast.Name) and side.func.id == "type" for side in sides
        ) or any(isinstance(side, ast.Attribute) and side.attr == "__class__" for side in sides):
            if any(map(self.of_a_seam, sides)):
                self.report("type", node)
        elif any(isinstance(side, ast.Attribute) and side.attr in ("__name__", "__qualname__") for side in sides):
            self.report("class name", node)
        asked = node.left.value if isinstance(node.left, ast.Constant) else None
        presence = isinstance(node.ops[0], ast.In | ast.NotIn)
        if presence and asked in METRICS and not self.path.startswith(HOMES):
            self.report("metric", node)
        elif presence and asked in self.options and not self.path.startswith(HOMES) and not _is_split(node.comparators[0]):
            self.report("option", node)
        if isinstance(node.ops[0], ast.Is | ast.IsNot) and isinstance(node.left, ast.Call) and node.left.args:
            first = node.left.args[0]
            if ast.unparse(node.left.func).endswith("get") and isinstance(first, ast.Constant) and first.value in METRICS:
                self.report("metric", node)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """The class name of a subject, whatever is done with it."""
        if node.attr in ("__name__", "__qualname__") and not self.path.startswith(HOMES):
            inner = node.value
            of = inner.args[0] if isinstance(inner, ast.Call) and ast.unparse(inner.func) == "type" and inner.args else None
            of = inner.value if isinstance(inner, ast.Attribute) and inner.attr == "__class__" else of
            last = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""
            if last.strip("_") in SUBJECTS:
                self.report("class name", node)
        self.generic_visit(node)

    def collection(self, node: ast.expr, items: list[ast.expr]) -> None:
        if self.path not in TABLES and any(map(self.is_name, items)):
            self.report("names", node)

    def visit_Tuple(self, node: ast.Tuple) -> None:
        self.collection(node, node.elts)
        self.generic_visit(node)

    def visit_List(self, node: ast.List) -> None:
        self.collection(node, node.elts)
        self.generic_visit(node)

    def visit_Set(self, node: ast.Set) -> None:
        self.collection(node, node.elts)
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        self.collection(node, [key for key in node.keys if key is not None])
        self.generic_visit(node)


def breaches(sources: dict[str, str]) -> list[Breach]:
    """Of product files by path."""
    trees = {path: parse(source) for path, source in sources.items() if path.startswith(LAYERS)}
    constants = {name for path, tree in trees.items() if not path.startswith(HOMES) for name in _named_constants(tree)}
    options = _options(trees)
    found = []
    for path, tree in trees.items():
        finder = _Finder(path, constants, options)
        for statement in sorted(ast.walk(tree), key=lambda node: getattr(node, "lineno", 0)):
            if isinstance(statement, ast.Import | ast.ImportFrom):
                finder.visit(statement)
        finder.visit(tree)
        found += finder.found
    return found


def _named_constants(tree: ast.Module) -> Iterator[str]:
    """FIFO = "fifo", at the top of a module."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant) and statement.value.value in NAMES:
            yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


def _is_split(node: ast.expr) -> bool:
    """Words of a text, which are no options."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split"


def _options(trees: dict[str, ast.Module]) -> set[str]:
    """Options that only some algorithm or environment family has."""
    own, general = set[str](), set[str]()
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name.endswith(("Config", "Options")):
                names = {
                    line.target.id for line in node.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
                }
                if path.startswith(HOMES):
                    own |= names
                else:
                    general |= names
    return own - general


def crowded(paths: list[str]) -> list[Breach]:
    """Folders within the rooms that have more entries than one finds one's way in. A room's own are its floors."""
    entries: dict[str, set[str]] = {}
    for path in paths:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            if parts[depth] not in ("__init__.py", "py.typed"):
                entries.setdefault("/".join(parts[:depth]), set()).add(parts[depth])
    return [
        Breach(folder, f"more than {MOST_SIBLINGS} siblings", 0, f"{len(names)} entries")
        for folder, names in sorted(entries.items())
        if len(names) > MOST_SIBLINGS and folder.startswith(LAYERS) and "/" in folder
    ]


def count(found: list[Breach]) -> Counter[tuple[str, str]]:
    return Counter((breach.path, breach.kind) for breach in found)


def read_known(text: str) -> Counter[tuple[str, str]]:
    """Lines `path: kind: number`."""
    rows = [line.split(": ") for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return Counter({(path, kind): int(number) for path, kind, number in rows})


def write_known(known: Counter[tuple[str, str]]) -> str:
    header = "# Breaches of the rules in seam_rules.py that are not mended yet. This list only ever shrinks.\n"
    return header + "".join(f"{path}: {kind}: {number}\n" for (path, kind), number in sorted(known.items()))


def sources() -> dict[str, str]:
    files = (file for layer in LAYERS for file in sorted((ROOT / layer).rglob("*.py")))
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


def all_breaches() -> list[Breach]:
    """Of the tree: what is asked, and crowded folders."""
    files = (file for layer in LAYERS for file in (ROOT / layer).rglob("*"))
    listed = [file.relative_to(ROOT).as_posix() for file in files if file.is_file() and "__pycache__" not in file.parts]
    return breaches(sources()) + crowded(listed)


if __name__ == "__main__":
    present = all_breaches()
    for each in present:
        print(f"{each.path}:{each.line} {each.kind}: {each.text}")
    if "--shrink" in sys.argv:
        now, before = count(present), read_known(KNOWN.read_text())
        kinds = [Counter({kind: 0 for _, kind in now}) for _ in range(2)]
        for total, counted in zip(kinds, (now, before), strict=True):
            for (_, kind), number in counted.items():
                total[kind] += number
        if more := kinds[0] - kinds[1]:
            sys.exit(f"there are more than before: {dict(more)}")
        KNOWN.write_text(write_known(now))
