"""The record of a sweep's trials, by Optuna: what was tried, what is to be tried next, and which settings matter.

It is a journal: one line of JSON for every change. A trial that was running when its sweep ended is tried again, with the same
values, under a new number.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from deploy.errors import ConfigError
from deploy.studies.sweep.plan import Plan
from deploy.studies.sweep.ranges import Range
from learner.devices import installing
from transport.files.writing import remove

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

JOURNAL = "study.journal"
POINTS = 10  # intermediate values of one run, evenly over its time or steps
FEWEST_TRIALS, FEWEST_POINTS = 4, 2  # before which no trial is pruned, and before which point of its first run
FEWEST_FOR_IMPORTANCE = 8  # of fewer trials it says more about chance
AGAIN, RESULT = "again", "result"  # attributes of a trial: the number of the trial that it repeats; what `end` was given
State = Literal["waiting", "running", "complete", "pruned", "failed"]


class Suggestion(NamedTuple):
    """The settings of the next trial, by key of the configuration."""

    number: int
    values: dict[str, Any]


class Trial(NamedTuple):
    """A trial as it is on record. `result` is what `Study.end` was given."""

    number: int
    state: State
    values: dict[str, Any]
    value: float | None
    result: dict[str, Any]


class Study:
    """Used by one process at a time, which holds the sweep's lock; reading alone needs none."""

    def __init__(self, plan: Plan, reading: bool = False) -> None:
        """Opens the record, or begins it. Raises ConfigError where there is nothing to read."""
        import optuna
        import optuna.storages.journal as journal

        path = plan.folder / JOURNAL
        if reading and not path.is_file():
            raise ConfigError(f"sweep {plan.path.stem} has not begun; start it with `{plan.command}`")
        if not reading:
            repair(path)
        self._search = plan.search
        self._distributions = {key: _distribution(found) for key, found in plan.search.items()}
        # Not the default lock, a symbolic link: Windows allows those to administrators only.
        backend = journal.JournalFileBackend(str(path), journal.JournalFileOpenLock(str(path)))
        storage, name, pruner = optuna.storages.JournalStorage(backend), plan.path.stem, _pruner(plan)
        if storage.get_all_studies():
            self._study = optuna.load_study(study_name=name, storage=storage, pruner=pruner)
        else:
            directions = optuna.study.StudyDirection
            direction = directions.MAXIMIZE if plan.config.time_to is None else directions.MINIMIZE
            self._study = optuna.create_study(study_name=name, storage=storage, direction=direction, pruner=pruner)
        # With the same seed a resumed sweep would begin with the values of its first trials again.
        self._study.sampler = _sampler(plan, plan.config.seed + len(self._study.get_trials(deepcopy=False)))
        self._running: dict[int, optuna.Trial] = {}

    def begin(self) -> Suggestion:
        """The next trial, which is running from now on: one that is to be repeated, or a new one."""
        trial = self._study.ask(self._distributions)
        self._running[trial.number] = trial
        return Suggestion(trial.number, self._decoded(trial.params))

    def report(self, number: int, step: int, value: float) -> bool:
        """Records an intermediate value: a higher one is better where the objective is maximised, a lower one where it is
        minimised. Returns whether to end the trial now."""
        trial = self._running[number]
        trial.report(value, step)
        return bool(trial.should_prune())

    def end(self, number: int, state: State, result: dict[str, Any], value: float | None = None) -> None:
        """Records how a trial ended; `value` is given where it is complete."""
        from optuna.trial import TrialState

        states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
        trial = self._running.pop(number)
        trial.set_user_attr(RESULT, result)
        self._study.tell(trial, value, state=states[state])

    def repeat(self, numbers: Sequence[int] | None = None) -> list[int]:
        """Queues running trials to be tried again: those with these `numbers`, or all. Returns their numbers.

        If the process is killed here, the next call does the rest: no trial is lost, and none is queued twice.
        """
        from optuna.trial import TrialState

        frozen = self._study.get_trials(deepcopy=False)
        repeated = _repeated(frozen)
        wanted = [trial for trial in frozen if trial.state == TrialState.RUNNING and (numbers is None or trial.number in numbers)]
        for trial in wanted:
            if trial.number not in repeated and trial.params.keys() == self._search.keys():
                self._study.enqueue_trial(trial.params, user_attrs={AGAIN: trial.number})
            self._study.tell(trial.number, state=TrialState.FAIL)
            self._running.pop(trial.number, None)
        return [trial.number for trial in wanted]

    def trials(self) -> list[Trial]:
        """The trials in the order of their numbers, without those that another trial repeats."""
        frozen = self._study.get_trials(deepcopy=False)
        repeated, found = _repeated(frozen), []
        for trial in frozen:
            state: State = STATES[trial.state.name]
            never_began = state == "failed" and RESULT not in trial.user_attrs  # killed before all of its values were recorded
            if trial.number not in repeated and not never_began:
                params = trial.params or trial.system_attrs.get("fixed_params", {})
                value = trial.value if state == "complete" else None
                found.append(Trial(trial.number, state, self._decoded(params), value, trial.user_attrs.get(RESULT, {})))
        return found

    def best(self) -> Trial | None:
        """The complete trial with the best value."""
        ranked = self.ranked()
        return ranked[0] if ranked and ranked[0].state == "complete" else None

    def ranked(self) -> list[Trial]:
        """All trials: complete ones first, the best of them in front; then pruned, failed and unfinished ones."""
        sign = -1 if self._study.direction.name == "MAXIMIZE" else 1
        order = list(STATES.values())
        found = sorted(self.trials(), key=lambda trial: trial.number)
        return sorted(found, key=lambda trial: (order.index(trial.state), sign * (trial.value or 0.0)))

    def importance(self) -> dict[str, float]:
        """The share of each setting in the differences between complete trials, the largest first; shares add up to 1. By
        PED-ANOVA (arXiv 2304.10255). Empty where too few trials are complete, or all are alike."""
        import optuna

        complete = [trial for trial in self.trials() if trial.state == "complete"]
        if len(complete) < FEWEST_FOR_IMPORTANCE or len({trial.value for trial in complete}) == 1:
            return {}
        with _quiet():
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            return optuna.importance.get_param_importances(self._study, evaluator=evaluator)

    def _decoded(self, params: dict[str, Any]) -> dict[str, Any]:
        return {key: found.labels[params[key]] if found.choices else params[key] for key, found in self._search.items()
                if key in params}  # fmt: skip


STATES: dict[str, State] = {
    "COMPLETE": "complete",
    "PRUNED": "pruned",
    "FAIL": "failed",
    "RUNNING": "running",
    "WAITING": "waiting",
}  # in the order of a table


def repair(path: Path) -> None:
    """Removes what a killed process has left of a journal: its lock, and a last line that is not whole."""
    for stale in path.parent.glob(f"{path.name}.lock*"):
        remove(stale)
    if path.is_file():
        with path.open("r+b") as file:
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)


def require_optuna() -> None:
    """Makes Optuna say nothing by itself. Raises ConfigError where it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(f"`headrace sweep` needs optuna, which is not installed: {installing.headrace('sweep')}") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def _repeated(trials: Sequence[FrozenTrial]) -> set[int]:
    """The numbers of the trials that other trials repeat."""
    return {trial.user_attrs[AGAIN] for trial in trials if AGAIN in trial.user_attrs}


def _distribution(found: Range) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if found.choices is not None:
        return CategoricalDistribution(list(found.labels))
    assert found.low is not None
    if found.whole:
        return IntDistribution(int(found.low), int(found.last), found.log, int(found.step or 1))
    return FloatDistribution(float(found.low), float(found.last), found.log, found.step)


def _sampler(plan: Plan, seed: int) -> optuna.samplers.BaseSampler:
    from optuna.samplers import RandomSampler, TPESampler

    # constant_liar: a trial that is still running counts as a bad one, so that trials at once differ.
    return TPESampler(seed=seed, constant_liar=True) if plan.config.sampler == "tpe" else RandomSampler(seed)


def _pruner(plan: Plan) -> optuna.pruners.BasePruner:
    from optuna.pruners import MedianPruner, NopPruner, SuccessiveHalvingPruner

    if plan.config.pruner == "median":
        return MedianPruner(n_startup_trials=FEWEST_TRIALS, n_warmup_steps=FEWEST_POINTS)
    if plan.config.pruner == "halving":
        return SuccessiveHalvingPruner(min_resource=FEWEST_POINTS, reduction_factor=2)
    return NopPruner()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
