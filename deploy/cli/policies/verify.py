"""`headrace verify`: repeats what a card says of a policy."""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from actors.evaluation.options import EvaluationOptions, to_arguments
from deploy import runs
from deploy.children import child_environment, python_command
from deploy.cli.common import DONE, FAILED, add_trust
from deploy.cli.policies.common import OF_A_FILE, refreshed, unpacked
from deploy.cli.streams import tell
from deploy.config import trust
from deploy.config.values import COUNT
from deploy.errors import ConfigError
from deploy.views.sharing.facts import digest_of
from deploy.views.sharing.named import card_file
from deploy.views.sharing.verification import FEWEST, Claim, Evaluation, Verdict, compare, contradiction, read_claim
from learner.saving.export import read_exported
from learner.weights.checkpoint import CheckpointError
from transport.experience import SpecError
from transport.files.documents import decode
from transport.files.renamed import FORMAT
from transport.run_dir import RunDir
from transport.text import plain

USAGE_LINE = "headrace verify CARD [--file FILE] [--episodes N] [--seed S] [--train] [--json]"
DESCRIPTION = """\
Say whether the policy of a card does what the card says: the weights are those of the card, and their mean return in other
episodes lies within the card's 95 % interval, widened by that of the new episodes.

  headrace verify cartpole.md                  with cartpole.safetensors beside it, as the card says
  headrace verify zoo:snake                    a policy that comes with Headrace
  headrace verify README.md --episodes 500     more episodes: a narrower interval
  headrace verify cartpole.md --train          train once more, by the same settings and another seed, and compare that

Exit status: 0 it does; 1 it does not; 2 there is no card or no policy.
"""
SEEDS = 1_000_000
RUN, TRAINED = "verified", "trained"
OF_TRAINING = ("env", "algorithm", "actors", "replay", "learner", "evaluator")
ELSEWHERE = (("learner", "weights"), ("learner", "clone_steps"), ("replay", "demonstrations"))


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("card", metavar="CARD", help="a card that `headrace export` has written, hub:OWNER/NAME, or zoo:NAME")
    target.add_argument("--file", metavar="FILE", help="the policy (default: the file that the card names, beside it)")
    target.add_argument("--episodes", type=COUNT, metavar="N", help="episodes to play (default: as many as the card says)")
    target.add_argument("--seed", type=COUNT, metavar="S", help="seed of the episodes, and of --train (default: any)")
    target.add_argument("--train", action="store_true", help="repeat the training, too, for as many steps: that may take hours")
    target.add_argument("--json", action="store_true", help="print JSON, for programs")
    add_trust(target)


def run(parsed: argparse.Namespace) -> int:
    card = card_file(parsed.card)
    claim = read_claim(card)
    file = Path(parsed.file) if parsed.file else card.parent / Path(claim.file).name
    if not file.is_file():
        raise ConfigError(f"there is no file {file}: name the policy with --file")
    seed = secrets.randbelow(SEEDS) + 1 if parsed.seed is None else parsed.seed
    try:
        found = _verify(claim, file, parsed, seed)
    except (CheckpointError, SpecError) as error:
        raise ConfigError(str(error)) from error
    print(json.dumps(found) if parsed.json else _said(found))
    return DONE if found["verified"] else FAILED


def _verify(claim: Claim, file: Path, parsed: argparse.Namespace, seed: int) -> dict[str, Any]:
    weights, _, config = read_exported(file)
    if not parsed.trusted:
        trust.check_exported({key: config[key] for key in OF_A_FILE if key in config}, file, f"add {trust.FLAG}")
    if digest_of(weights) != claim.weights_sha256:
        return _refuted(f"the weights of {file.name} are not those of the card")
    try:
        named = {"env": config["env"]["id"], "algorithm": config["algorithm"]["name"]}
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{file} does not say its environment and algorithm") from error
    if named != {"env": claim.env, "algorithm": claim.algorithm}:
        return _refuted(f"{file.name} is {named['algorithm']} on {named['env']}, not {claim.algorithm} on {claim.env}")
    evaluation = claim.evaluation
    if evaluation is None:
        raise ConfigError("the card says that its policy has not been evaluated: there is nothing to verify")
    if wrong := contradiction(evaluation):
        return _refuted(f"the card contradicts itself: {wrong}")
    with tempfile.TemporaryDirectory(prefix="headrace-verify-") as folder:
        source = unpacked(file, RunDir(Path(folder) / RUN), parsed.trusted)
        if parsed.train:
            source = _trained(claim, config, Path(folder), seed, parsed.trusted)
        figures = _evaluated(source, max(parsed.episodes or evaluation.episodes, FEWEST), seed)
    verdict = compare(evaluation, figures["return_mean"], figures["return_std"], figures["episodes"])
    return _found(verdict, evaluation, figures, seed, parsed.train)


def _evaluated(run_dir: RunDir, episodes: int, seed: int) -> dict[str, Any]:
    """The figures of a run's policy in other episodes. Raises ConfigError where they cannot be played."""
    python = refreshed(run_dir).deploy.actor_python
    words = to_arguments(run_dir, EvaluationOptions(episodes=episodes, seed=seed, json=True))
    command = python_command("actors.evaluation.evaluate", *words, python=python)
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace", env=child_environment(python)
    )
    if done.returncode:
        raise ConfigError("the policy could not be evaluated")
    return decode(done.stdout, dict[str, Any])


def _trained(claim: Claim, config: dict[str, Any], folder: Path, seed: int, trusted: bool) -> RunDir:
    """A run with the settings of the policy, after as many steps. Raises ConfigError."""
    if not claim.steps:
        raise ConfigError("the card does not say for how many steps its policy was trained")
    if config.get("offline"):
        raise ConfigError("the policy has learned offline, and a card does not bring its data set: leave out --train")
    settings = folder / "settings.toml"
    try:
        settings.write_bytes(tomli_w.dumps({"format": FORMAT} | trainable(config)).encode())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the settings in the file cannot be those of a run: {error}") from error
    words = ["--config", str(settings), "--run", TRAINED, "--seed", str(seed), "--total-steps", str(claim.steps)]
    words += [trust.FLAG] if trusted else []
    tell(f"training for {claim.steps:,} steps …")
    command = python_command("deploy.cli.main", "up", *words)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=folder, env=child_environment())
    if done.returncode:
        raise ConfigError(f"the training ended with exit status {done.returncode}")
    return RunDir(folder / runs.RUNS / TRAINED)


def trainable(config: dict[str, Any]) -> dict[str, Any]:
    """The settings in a file that a training may have: nothing that names files, hosts or services of its author."""
    found = {section: dict(config[section]) for section in OF_TRAINING if isinstance(config.get(section), dict)}
    for section, key in ELSEWHERE:
        found.get(section, {}).pop(key, None)
    return found


def _refuted(reason: str) -> dict[str, Any]:
    return {"verified": False, "reason": reason}


def _found(verdict: Verdict, claim: Evaluation, figures: dict[str, Any], seed: int, trained: bool) -> dict[str, Any]:
    what = "a training by the same settings" if trained else "the policy"
    chosen = "; its episodes selected the policy, so they may be too good" if claim.selected else ""
    reason = f"{what} has {verdict}: the card says {claim.return_mean:,.2f} in {claim.episodes:,} episodes{chosen}"
    measured = {
        "return_mean": verdict.ours,
        "episodes": figures["episodes"],
        "seed": seed,
        "low": verdict.low,
        "high": verdict.high,
    }
    return {"verified": verdict.holds, "reason": reason, **measured}


def _said(found: dict[str, Any]) -> str:
    return f"{'verified' if found['verified'] else 'NOT verified'}: {plain(found['reason'])}"
