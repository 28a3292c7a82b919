"""Makes each fault in a copy of a tree, runs the tests that should find it, and says which were caught.

python -m tests.mutations --tree . --out mutations.json [--list mends] [--only WORDS …]

The list `faults` has faults that such a system may have; `mends` takes away what was mended, one by one, named by its number.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

from tests.mutations.faults import LISTS, Fault, place, read_faults, test_ids

LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache")
NO_TESTS = 5  # exit status of pytest where all that were named are slow ones
SECONDS = 300.0  # of one test file; more counts as caught: it hangs


def run_tests(root: Path, tests: list[str], seconds: float = SECONDS, all_of_them: bool = False) -> tuple[bool, list[str]]:
    """Whether all passed, and the lines that say so or which did not: the first, or `all_of_them`."""
    environment = os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]
    command += [] if all_of_them else ["-x"]
    process = subprocess.Popen(
        command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return False, [f"not within {seconds:.0f} s"]
    lines = out.strip().splitlines()
    failed = [line[:300] for line in lines if line.startswith(("FAILED", "ERROR"))]
    passed = process.returncode in (0, NO_TESTS)
    return passed, failed or lines[-1:] or ["no output"]


def try_fault(root: Path, fault: Fault) -> dict[str, Any]:
    """What becomes of it: caught, survived, or misplaced where it fits nothing."""
    found, tests = place(root, fault), test_ids(root, fault.tests)
    result: dict[str, Any] = {"fault": fault.name, "tests": tests}
    if found is None or not tests:
        return result | {"outcome": "misplaced", "line": "no such function, text or test"}
    file, mutant = found
    sound, begun, passed, lines, test = file.read_text(encoding="utf-8"), time.monotonic(), True, [""], ""
    file.write_text(mutant, encoding="utf-8")
    try:
        for test in tests:
            passed, lines = run_tests(root, [test])
            if not passed:
                break
    finally:
        file.write_text(sound, encoding="utf-8")
    seconds = round(time.monotonic() - begun, 1)
    result |= {"file": str(file.relative_to(root)), "seconds": seconds, "line": lines[-1]}
    return result | ({"outcome": "survived"} if passed else {"outcome": "caught", "failed": _test(lines[-1]) or test})


def check_sound(root: Path, results: list[dict[str, Any]]) -> None:
    """A test that fails without the fault, too, has caught nothing. A test counts with all its parameters, since their names may
    hold the path of a tree that is gone."""
    caught = {result["fault"]: result["failed"].partition("[")[0] for result in results if "failed" in result}
    if not caught:
        return
    passed, lines = run_tests(root, sorted(set(caught.values())), 3600, all_of_them=True)
    failing = {_test(line).partition("[")[0] for line in lines}
    ended_early = not passed and failing == {""}
    for result in results:
        if test := caught.get(result["fault"]):
            passes = not ended_early and test not in failing
            result |= {"passes_without_the_fault": passes, "outcome": "caught" if passes else "unsound"}
            if not passes:
                print(f"unsound: {test} does not pass without the fault {result['fault']!r}, either: {lines[-1]}", flush=True)


def _test(line: str) -> str:
    """The test that a line of pytest's summary is about; empty if it is about none."""
    return line.partition(" ")[2].partition(" - ")[0] if line.startswith(("FAILED ", "ERROR ")) and "::" in line else ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--tree", type=Path, default=Path("."), help="the tree whose tests are tried")
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    parser.add_argument("--list", choices=LISTS, default="faults", help="the list of faults")
    parser.add_argument("--only", nargs="*", help="faults whose name holds one of these")
    parser.add_argument("--resume", action="store_true", help="keep what --out has of faults that were caught")
    parser.add_argument("--places", action="store_true", help="only say which faults fit the tree")
    parsed = parser.parse_args()
    faults = read_faults(LISTS[parsed.list])
    faults = [fault for fault in faults if not parsed.only or any(word in fault.name for word in parsed.only)]
    if parsed.places:
        missing = [fault.name for fault in faults if not (place(parsed.tree, fault) and test_ids(parsed.tree, fault.tests))]
        print("\n".join([*(f"misplaced: {name}" for name in missing), f"{len(faults) - len(missing)} of {len(faults)} fit"]))
        return bool(missing)
    known = {}
    if parsed.resume and parsed.out and parsed.out.exists():
        known = {result["fault"]: result for result in json.loads(parsed.out.read_text()) if result["outcome"] == "caught"}
    results = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tree"
        shutil.copytree(parsed.tree, root, ignore=LEFT_OUT)
        # Compiled once, and checked by its contents: a fault may have the size of what it replaces, and come within a second.
        compileall.compile_dir(root, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
        for fault in faults:
            results.append(last := known.get(fault.name) or try_fault(root, fault))
            print(f"{last['outcome']:9} {last.get('seconds', 0):6.1f} s  {fault.name}: {last['line']}", flush=True)
            if parsed.out:
                parsed.out.write_text(json.dumps(results, indent=1) + "\n")
        check_sound(root, results)
    if parsed.out:
        parsed.out.write_text(json.dumps(results, indent=1) + "\n")
    missed = [result for result in results if result["outcome"] != "caught"]
    print(f"{len(results) - len(missed)} of {len(results)} caught")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
