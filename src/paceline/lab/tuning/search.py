"""Configuration search by Optuna: TPE proposals (Bergstra et al. 2011) with ASHA pruning
(asynchronous successive halving, arXiv:1810.05934). Study and evidence are journaled: runs resume.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.storages.journal import JournalFileBackend
from optuna.trial import Trial, TrialState

from paceline.core.cache import make_dir
from paceline.errors import ModelError
from paceline.lab.tuning.space import FIRST_SIZING, SIZINGS, Evidence, Space, configuration
from paceline.registry.tuned_choice import Configuration, set_aside

# Prompts before a trial can be pruned: on a single one all drafters may be useless.
_RUNG = 3

# Reduction factor of successive halving; rungs are at 3, 6 and 12 prompts.
_HALVING = 2

_PRUNED = "pruned"


@dataclass(frozen=True, slots=True)
class Candidate:
    """Configuration on trial."""

    configuration: Configuration
    trial: Trial


class Search:
    """Resumable study of a space; every configuration is tried once at most."""

    def __init__(
        self, path: Path, name: str, prompts: int, seed: int = 0, space: Space | None = None
    ) -> None:
        """Open the study `name` in the journal at `path`, or begin it.

        Args:
            path: a damaged journal is set aside with a warning.
            name: of everything that the figures depend on.
            prompts: of a whole trial.
            space: None is all that needs no trained weights.

        Raises:
            ModelError: the cache cannot be written.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        make_dir(path.parent)
        self.space = space or Space()
        self._prompts = prompts
        begins = len(self.space.drafters)
        try:
            _mend(path)
            self._study, self.evidence = _open(path, name, seed, begins)
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            set_aside(path, f"damaged journal: {error}")
            self._study, self.evidence = _open(path, name, seed, begins)
        except OSError as error:
            raise ModelError(f"cannot keep the search in {path} ({error.strerror})") from error
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self._study.tell(trial.number, state=TrialState.FAIL)  # a run that was killed
        for drafter in self.space.drafters:
            first = {"drafter": drafter, "sizing": FIRST_SIZING}
            self._study.enqueue_trial(first, skip_if_exists=True)

    def cohort(self, size: int) -> list[Candidate]:
        """Propose up to `size` untried configurations; none once all were tried."""
        out: list[Candidate] = []
        while len(out) < size:
            tried = self._tried() | {each.configuration.name for each in out}
            untried = self.space.first_untried(tried)
            if untried is None:
                break
            candidate = self._ask()
            if candidate.configuration.name in tried:  # proposals repeat themselves
                self._study.tell(candidate.trial, state=TrialState.FAIL)
                self._study.enqueue_trial(dict(zip(("drafter", "sizing"), untried, strict=True)))
                continue
            out.append(candidate)
        return out

    def prune(self, candidate: Candidate, speedup: float, prompts: int) -> bool:
        """Record a trial's speedup after some prompts; return if it should end here."""
        candidate.trial.report(speedup, prompts)
        if not candidate.trial.should_prune():
            return False
        candidate.trial.set_user_attr(_PRUNED, True)
        self._study.tell(candidate.trial, state=TrialState.PRUNED)
        return True

    def finish(self, candidate: Candidate, speedup: float, prompts: int) -> None:
        """End a trial; one that ended before the first rung can be tried again."""
        if prompts >= min(_RUNG, self._prompts):
            self._study.tell(candidate.trial, speedup)
            return
        self._study.tell(candidate.trial, state=TrialState.FAIL)
        self._study.enqueue_trial(candidate.trial.params)

    @property
    def pruned(self) -> set[str]:
        trials = self._study.get_trials(deepcopy=False)
        return {_of(trial.params).name for trial in trials if trial.user_attrs.get(_PRUNED)}

    def _ask(self) -> Candidate:
        trial = self._study.ask()
        drafter = trial.suggest_categorical("drafter", self.space.drafters)
        return Candidate(
            configuration(drafter, trial.suggest_categorical("sizing", tuple(SIZINGS))), trial
        )

    def _tried(self) -> set[str]:
        ended = (TrialState.COMPLETE, TrialState.PRUNED)
        trials = self._study.get_trials(deepcopy=False, states=ended)
        return {_of(trial.params).name for trial in trials}


def _open(path: Path, name: str, seed: int, begins: int) -> tuple[optuna.Study, Evidence]:
    # The first `begins` trials are enqueued, not proposed.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(
            study_name=name,
            storage=optuna.storages.JournalStorage(JournalFileBackend(str(path))),
            sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=begins),
            pruner=optuna.pruners.SuccessiveHalvingPruner(
                min_resource=_RUNG, reduction_factor=_HALVING
            ),
            direction="maximize",
            load_if_exists=True,
        )
    return study, Evidence(study.user_attrs, study.set_user_attr)


def _mend(path: Path) -> None:
    # Drop a last line that a crash truncated; ValueError if another line is no journal entry.
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    for line in whole.splitlines():
        if not isinstance(json.loads(line), dict):
            raise ValueError("a line is no entry")
    if whole != content:
        path.write_bytes(whole)


def _of(params: Mapping[str, str]) -> Configuration:
    return configuration(params["drafter"], params["sizing"])
