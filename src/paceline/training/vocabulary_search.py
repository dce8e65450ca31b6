"""The best size of a draft vocabulary by a tree-structured Parzen estimator: Optuna's part.

As published, the search is by TPE (Bergstra et al. 2011) under a constraint on coverage. With one
integer to set, `Balance.best` is exact and no slower; this is what it is compared with, and the
way to go once a size's worth has to be measured instead of computed.
"""

from __future__ import annotations

import optuna
from optuna.trial import Trial

from paceline.training.vocabulary_size import Balance, Sizing


def search(balance: Balance, trials: int = 100, seed: int = 0) -> Sizing:
    """The size of greatest utility among those tried that cover enough.

    Args:
        balance: what is weighed, and the allowed sizes.
        trials: sizes to try, at least 1; the largest is always tried, so one is good enough.
        seed: of the proposals.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=min(20, trials))
    study = optuna.create_study(sampler=sampler, direction="maximize")
    first, last = int(balance.sizes[0]), int(balance.sizes[-1])
    step = int(balance.sizes[1]) - first if len(balance.sizes) > 1 else 1

    def utility(trial: Trial) -> float:
        tried = balance.at(trial.suggest_int("size", first, last, step=step))
        trial.set_constraint("coverage", balance.least_coverage - tried.coverage)  # 0 will do
        return tried.utility

    study.enqueue_trial({"size": last})
    study.optimize(utility, n_trials=trials)
    return balance.at(study.best_params["size"])
