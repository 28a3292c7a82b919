"""The card of a policy, Markdown with a head in YAML as model repositories expect it, and what is sent along with it."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from actors.config import EnvConfig
from actors.evaluation.summary import interval, mean_interval
from actors.evaluation.video.kept import read_videos
from actors.figures import EVALUATION, Figure
from deploy.config.files import leaves
from deploy.launch.preflight import describe_spec
from deploy.views.sharing.facts import COMMAND, SINGLE, CardFacts, Measured, of_file, of_run, published
from learner.weights.checkpoint import write
from transport.files.documents import read_bytes
from transport.files.writing import writing
from transport.run_dir import RunDir
from transport.text import amount, plain

HEAD = "---\nlibrary_name: headrace"  # the first lines of every card
VERIFIABLE, FORMAT = "headrace", 1  # the key in the YAML of what `headrace verify` reads
OMITTED = ("id", "preflight_seconds")  # settings of the environment that are shown elsewhere, or have no effect on learning
POLICY, CARD, VIDEO = "policy.safetensors", "README.md", "replay.mp4"  # in a repository; its page shows the last two
NOT_MEASURED = (
    "These weights have not been evaluated. `headrace eval RUN` evaluates the newest weights of a run, `headrace eval RUN "
    "--best` the best ones. Export again afterwards to have the figures here."
)


def card(facts: CardFacts, policy: str, video: str = "", repository: str = "") -> str:
    """`policy` and `video` are names of files beside the card, `repository` is where they are; empty where there is none."""
    env, algorithm = facts.config["env"], facts.config["algorithm"]
    name = cell(f"{algorithm['name']} on {env['id']}")
    parts = [
        *(HEAD, *head(facts, policy), "---", "", f"# {name}", ""),
        f"A policy for `{cell(env['id'])}`, trained by Headrace with the algorithm `{cell(algorithm['name'])}`.",
        *(["", f"[A video of one episode]({video})"] if video else []),
        *("", "## Results", "", *results(facts)),
        *("", "## Training", "", *training(facts)),
        *("", "## How to load it", "", *loading(facts, policy, repository)),
        *("", "## How it was evaluated", "", *protocol(facts)),
    ]
    return "\n".join(parts) + "\n"


def verifiable(facts: CardFacts, policy: str) -> dict[str, Any]:
    """What `headrace verify` reads."""
    found = facts.measured
    evaluation = None
    if found is not None:
        names = ("return_mean", "return_std", *SINGLE)
        figures = {name: found.figures[name] for name in names if name in found.figures}
        evaluation = {"by": found.by, "episodes": found.episodes, "selected": found.selected, **figures}
    seed = facts.config.get("seed")
    version = {"policy_version": facts.policy_version, "steps": facts.steps, "seed": seed if isinstance(seed, int) else None}
    of = {"env": facts.config["env"]["id"], "algorithm": facts.config["algorithm"]["name"], "weights_sha256": facts.digest}
    return {"format": FORMAT, "file": policy, **of, **version, "evaluation": evaluation}


def head(facts: CardFacts, policy: str) -> Iterator[str]:
    """YAML after HEAD; every value is written as JSON, which is YAML too."""
    env, algorithm = facts.config["env"]["id"], facts.config["algorithm"]["name"]
    yield "pipeline_tag: reinforcement-learning"
    yield f"{VERIFIABLE}: {json.dumps(verifiable(facts, policy))}"
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
    std, least, most = (found.figures.get(f"{figure.stem}_{part}") for part in ("std", "min", "max"))
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
        ("updates" if config.get("offline") else "environment steps"): "not known"
        if facts.steps is None
        else f"about {facts.steps:,}",
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
    yield f"policy = headrace.load({json.dumps(policy)}{trust})"
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


class Upload(NamedTuple):
    """Files by the names that they get in the repository, and the message of the commit."""

    files: dict[str, Path]
    about: str


def write_card(policy: Path, out: Path, film: Path, run: RunDir, repository: str = "") -> list[Path]:
    """Writes the card of a file that has been exported from `run`, and as `film` a video where there is one that may be
    published. Returns what has been written. Raises CheckpointError, OSError."""
    facts = of_run(policy, run)
    found = video_of(run, facts.policy_version)
    if found is not None:
        with found.open("rb") as source, writing(film) as file:
            shutil.copyfileobj(source, file)
    with writing(out) as file:
        file.write(card(facts, policy.name, film.name if found else "", repository).encode())
    return [out, film] if found else [out]


def video_beside(policy: Path) -> Path:
    """Where the video of an exported file is."""
    return policy.with_name(f"{policy.stem}-video.mp4")


def video_of(run: RunDir, version: int) -> Path | None:
    """The video of this version of the policy, if there is one that may be published."""
    fitting = (video for video in read_videos(run) if video.policy_version == version and video.may_be_published)
    return next((path for video in fitting if (path := run.videos / video.file).is_file()), None)


def make_upload(policy: Path, folder: Path, run: RunDir | None, repository: str) -> Upload:
    """Writes the files of an upload to `folder`: the policy without paths of this machine, and the card.

    With its `run` the card is made anew. Without, it is the one beside the file, which `headrace export` has written, or a new
    one without an evaluation. `repository` is where it goes. Raises CheckpointError, OSError.
    """
    facts, weights, metadata = of_file(policy)
    files = {name: folder / name for name in (POLICY, CARD)}
    write(files[POLICY], weights, published(weights, metadata))
    ours, beside, film = files[CARD], policy.with_suffix(".md"), video_beside(policy)
    if run is not None:
        if (folder / VIDEO) in write_card(files[POLICY], ours, folder / VIDEO, run, repository):
            files[VIDEO] = folder / VIDEO
    elif beside.is_file():
        text = read_bytes(beside).decode(errors="replace")
        if film.is_file() and film.name in text:
            files[VIDEO] = film
        ours.write_text(text.replace(film.name, VIDEO).replace(policy.name, POLICY), encoding="utf-8")
    else:
        ours.write_text(card(facts, POLICY, "", repository), encoding="utf-8")
    return Upload(files, about(facts))


def about(facts: CardFacts) -> str:
    return f"Policy v{facts.policy_version} for {facts.config['env']['id']} by {facts.config['algorithm']['name']}"
