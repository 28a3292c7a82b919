"""The card of a policy: Markdown with a head in YAML, as model repositories expect it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import msgspec

from actors.config import EnvConfig
from actors.evaluation.figures import interval, mean_interval
from actors.figures import EVALUATION, Figure
from deploy.config.files import leaves
from deploy.launch.preflight import describe_spec
from deploy.views.sharing.facts import COMMAND, CardFacts, Measured
from transport.text import amount, plain

HEAD = "---\nlibrary_name: headrace"  # the first lines of every card
OMITTED = ("id", "preflight_seconds")  # settings of the environment that are shown elsewhere, or have no effect on learning
NOT_MEASURED = (
    "These weights have not been evaluated. `headrace eval RUN` evaluates the newest weights of a run, `headrace eval RUN "
    "--best` the best ones. Export again afterwards to have the figures here."
)


def card(facts: CardFacts, policy: str, video: str = "", repository: str = "") -> str:
    """`policy` and `video` are names of files beside the card, `repository` is where they are; empty where there is none."""
    env, algorithm = facts.config["env"], facts.config["algorithm"]
    name = cell(f"{algorithm['name']} on {env['id']}")
    parts = [
        *(HEAD, *head(facts), "---", "", f"# {name}", ""),
        f"A policy for `{cell(env['id'])}`, trained by Headrace with the algorithm `{cell(algorithm['name'])}`.",
        *(["", f"[A video of one episode]({video})"] if video else []),
        *("", "## Results", "", *results(facts)),
        *("", "## Training", "", *training(facts)),
        *("", "## How to load it", "", *loading(facts, policy, repository)),
        *("", "## How it was evaluated", "", *protocol(facts)),
    ]
    return "\n".join(parts) + "\n"


def head(facts: CardFacts) -> Iterator[str]:
    """YAML after HEAD; every value is written as JSON, which is YAML too."""
    env, algorithm = facts.config["env"]["id"], facts.config["algorithm"]["name"]
    yield "pipeline_tag: reinforcement-learning"
    yield f"tags: {json.dumps(['reinforcement-learning', 'deep-reinforcement-learning', 'headrace', env])}"
    if (found := facts.measured) is not None:
        value = f"{found.figures['return_mean']:.2f} +/- {found.figures['return_std']:.2f}"
        metric = {"type": "mean_reward", "name": "mean_reward", "value": value, "verified": False}
        result = {
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"name": env, "type": env},
            "metrics": [metric],
        }
        yield f"model-index: {json.dumps([{'name': algorithm, 'results': [result]}])}"


def results(facts: CardFacts) -> Iterator[str]:
    found = facts.measured
    if found is None:
        yield NOT_MEASURED
        return
    yield "| figure | mean | 95 % interval |"
    yield "|---|---|---|"
    shown = [(figure, found.figures.get(figure.name)) for figure in EVALUATION if figure.card]
    for number, (figure, value) in enumerate(shown):
        alike = (other.form == figure.form and before == value for other, before in shown[:number])
        if value is not None and not any(alike):  # a score that is the return is one row
            yield f"| {figure.card} | {figure.text(value)} | {interval_of(found, figure, value)} |"
    yield ""
    by = f"`{found.by}`" if found.by == COMMAND else found.by
    spread = f"the standard deviation of their returns is {amount(found.figures['return_std'])}"
    yield f"Measured by {by} in {found.episodes:,} episode{'' if found.episodes == 1 else 's'}; {spread}."
    if found.selected:
        yield ""
        yield "The same episodes selected these weights as the best of the run, so the figures are too high. `headrace eval RUN"
        yield "--best` measures the weights in fresh episodes."


def interval_of(found: Measured, figure: Figure, mean: float) -> str:
    if figure.form == "percent":
        low, high = interval(round(mean * found.episodes), found.episodes)
        return f"{low:.0%} to {high:.0%}"
    std, least, most = (found.figures.get(f"{figure.word}_{part}") for part in ("std", "min", "max"))
    if std is None or found.episodes < 2:
        return "not known"
    if std == 0:
        return "none: all episodes were alike"
    low, high = mean_interval(mean, std, found.episodes, least, most)
    return f"{amount(low)} to {amount(high)}"


def training(facts: CardFacts) -> Iterator[str]:
    config, software = facts.config, dict(facts.software)
    env, algorithm, learner = config["env"], config["algorithm"], config.get("learner", {})
    source = software.pop("commit", "")
    usual: dict[str, Any] = msgspec.to_builtins(EnvConfig())
    given = {key: value for key, value in leaves(env) if key not in OMITTED and value != usual.get(key) and value}
    rows: dict[str, Any] = {
        "environment": f"`{cell(env['id'])}`" + "".join(f", {cell(key)} {cell(value)}" for key, value in given.items()),
        "observations and actions": cell(describe_spec(facts.spec)),
        "algorithm": f"`{cell(algorithm['name'])}`",
        "network": f"`{cell(algorithm.get('network', 'not said'))}`, {facts.parameters:,} parameters",
        "environment steps": "not known" if facts.steps is None else f"about {facts.steps:,}",
        "policy version": facts.policy_version,
        "seed": config.get("seed", "not known"),
        **{key: learner[key] for key in ("batch_size", "learning_rate") if key in learner},
        "exported with": ", ".join(f"{name} {version}" for name, version in software.items()),
        **({"commit of Headrace": source.replace("+", ", with changes")} if source else {}),
    }
    yield "| | |"
    yield "|---|---|"
    for name, value in rows.items():
        yield f"| {name.replace('_', ' ')} | {value} |"
    yield ""
    if facts.changed:
        yield "Settings that differ from the preset, or from the default where there is none:"
        yield ""
        yield "| setting | value |"
        yield "|---|---|"
        for key, value in facts.changed.items():
            yield f"| `{cell(key)}` | {cell(value)} |"
        yield ""
    yield "The file holds every setting."


def loading(facts: CardFacts, policy: str, repository: str) -> Iterator[str]:
    env, algorithm = facts.config["env"]["id"], facts.config["algorithm"]["name"]
    trust = ", trust=True" if facts.names_code else ""
    if facts.names_code:
        yield "The settings name code of the author, which is not in the file. Install it first; `trust=True` allows it to run."
        yield ""
    if repository:
        yield "```console"
        yield f"$ hf download {shell(repository)} {shell(policy)} --local-dir ."
        yield "```"
        yield ""
    yield "In Python:"
    yield ""
    yield "```python"
    yield "import headrace"
    yield ""
    yield f"policy = headrace.load({policy!r}{trust})"
    yield "action = policy.predict(observation)  # a plain observation of the environment"
    yield f"print(headrace.evaluate(policy, episodes=20{trust}))  # in the environment of training, which must be installed"
    yield "```"
    yield ""
    yield "On the command line, to train on from these weights, and to measure them in the same environment:"
    yield ""
    yield "```console"
    yield f"$ headrace up --env {shell(env)} --algo {shell(algorithm)} --learner.weights {shell(policy)} --run more"
    yield f"$ headrace eval more --weights {shell(policy)}"
    yield "```"


def protocol(facts: CardFacts) -> Iterator[str]:
    evaluator, found = facts.config.get("evaluator", {}), facts.measured
    yield "The policy acts greedily. Its environments have other seeds than those of training, and each plays the same number of"
    yield "episodes, so that short episodes do not count more often."
    limits = [f"{evaluator['max_episode_steps']:,} steps"] if "max_episode_steps" in evaluator else []
    if idle := evaluator.get("max_idle_steps"):
        limits.append(f"{idle:,} steps without a reward")
    if limits:
        yield f"An episode is cut off after {' or after '.join(limits)}."
    yield "The interval of a mean is that of the normal distribution, the interval of a rate is Wilson's."
    if found is None:
        yield "These weights have not been evaluated yet."
    elif found.by != COMMAND:
        yield "The evaluator measures while the run goes on, each time with the newest weights."


def shell(word: Any) -> str:
    return shlex.quote(plain(str(word)))


def cell(value: Any) -> str:
    """A value within a table or a heading."""
    text = value if isinstance(value, str) else ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return plain(text).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ") or "none"
