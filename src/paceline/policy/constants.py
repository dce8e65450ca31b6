"""Tuned constants of policy, drafters and trees: each with what fixed it.

Memories are decay factors; beliefs are weights of a prior, in observations. "Chosen"
marks what no measurement fixed; a start value is soon replaced by what is observed.
"""

from __future__ import annotations

# Acceptance estimates:
# Predicted tokens that the ratio of all counts for in a sequence's own; chosen.
CALIBRATION_PRIOR = 4.0
CALIBRATION_MEMORY = 0.98  # per draft, about 50 count; chosen
SELECTED_PRIOR = 10.0  # the bias of selection shows only over many drafts
SELECTED_MEMORY = 0.995  # likewise: it differs little between texts
HIT_MEMORY = 0.995  # per trial of a cell, about 200 count
CURVATURE = 10.0  # Platt's prior in the order of 50 tokens
CURVATURE_MEMORY = 0.999  # per token, so that the fit follows the text
LOGARITHMS = 64  # tokens in mean logarithms; chosen
DEPTH_MEMORY = 0.98  # of all sequences per trial, of one per step
OWN_DEPTH_BELIEF = 4.0  # trials that shared rates count for; chosen
DEPTH_ABOVE_BELIEF = 8.0  # a drafter that is right is soon tried deeper
TOKEN_PRIOR = 0.6  # acceptance of a token before any trial; a start value
TOKEN_BELIEF = 3.0  # trials that it counts for

# Forward costs:
ROW_PRICE_MEMORY = 0.99  # per step: a machine changes within seconds
# Of the measured price, as a sum of squares about the mean of measured costs.
ROW_PRICE_BELIEF = 0.1
ROW_PRICE_LEARN = 0.1  # per drafted step, of what is believed when steps are too few; chosen
ROW_PRICE_FORGET = 0.002  # per plain step: drafts are tried again in about 500
ROW_PRICE_LEAST = 0.25  # logged prices were 0.4 to 0.9 of the measured ones
ROW_PRICE_MOST = 4.0  # the bound on the other side; chosen
FORWARD_OUTLIER = 1.5  # a step that takes longer than expected counts as this many times
COST_SMOOTHING = 0.02  # per step: one timing is noisy

# Cost-model controller:
CHAIN_RETRY = 32  # plain steps until chains that did not pay are tried with one token
LEVEL_SMOOTHING = 0.05  # per step, cost of a drafted level; chosen
UNSHARED_TOKEN = 0.5  # worth of a token that one sequence of a batch gains beyond the others
LEAST_NODES = 8  # fewest nodes to ask for: expansion costs time too
LEVEL_SHARE = 0.1  # share of a draft's cost that one more token adds, as with EAGLE-3
DRAFT_RETRY = 4  # draft in one of so many steps where drafts do not pay
DRAFT_RETRY_SELDOM = 16  # the interval doubles up to this
PLAIN_EVERY = 100  # at most 1% of steps go into knowing what drafts are compared with
PLAIN_FIRST = 3  # that interval at the beginning; it doubles
HOPE = 50.0  # drafts for which it is believed that drafting saves a whole step

# Draft gate:
GATE_MEMORY = 0.98  # per draft, about 50 count
DRAFT_OUTLIER = 4.0  # a draft that takes this many times the usual was held up by something else
LOSS_SHARE = 0.02  # of the time goes into drafts that did not pay; chosen
RETRY_SOONER = 4  # in a batch some draft is good by chance: the interval shrinks by this only
LEARN_EVERY = 8  # plain steps per step learned from: ranking logits at each slows decoding

# Copied continuations:
# By match length, measured on greedy texts; start values.
COPY_RATES = (0.30, 0.56, 0.65, 0.70, 0.75, 0.79, 0.84, 0.91, 0.97)
SHARED_RATES = (0.35, 0.17, 0.11, 0.05)  # of one continuation among several, by share; likewise
OTHER_SOURCE = 0.6  # prior quality of another text, relative to the sequence's own; a start value

# Merged drafts:
UNSCORED = 0.6  # probability of a node given its parent in drafts without scores
MERGED_BELIEF = 12.0  # trials that drafters are believed to err independently; chosen

# Fallback to a second drafter:
AGREEING = 0.8  # share of a copy's probability that is evidence of its own where drafts agree
FREE_TEMPERATURE = 0.9  # from here on earlier text says little (docs/results, trained drafters)
BESIDE = 0.1  # least acceptance of a node that is drafted beside a better draft
# bins of first drafts by expected tokens; chosen.
GAIN_EDGES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
ADDED = 1.0  # tokens that a second draft adds; a start value
ADDED_BELIEF = 4.0  # drafts that it counts for; chosen
SECOND_RETRY = 16  # steps without a second draft until it is tried again
FEW_DRAFTS = 2  # drafts until a part's price is known
FEW_LEVELS = 4  # depth of those: a draft model may take long for a level; chosen
OFTEN = 8  # drafts of a sequence until a draft model reads more than its last tokens; chosen
FIRST_READ = 64  # those tokens; chosen
BEGIN = 4.0  # steps' time that a part may take before it is judged; chosen
JUDGED = 8  # drafts after which it is judged in any case, the first not counted; chosen
TRIALS = 0.005  # of the time goes into drafts that did not pay, per part and kind of first draft
TRIAL_COUNTS = 8  # drafts that one after many steps without counts for, so that change is noticed
READING_MEMORY = 0.8  # per reading: prompts differ little; chosen
FEW_UNREAD = 16  # tokens that a drafter reads as part of a draft; chosen
READ_FOR = 32  # drafts that reading a prompt is spread over; chosen
STEP_MEMORY = 0.97  # per step, duration of a step with the first drafter alone

# Bandit over drafters:
CHOICE_COST_MEMORY = 0.998  # per step
CHOICE_COST_BELIEF = 0.05  # steps that the prior of a choice's cost counts for
CHOICE_COST_HOPE = 0.5  # that prior, in units of the mean: untried choices look cheap
ARM_TRIAL_MEMORY = 0.985  # per trial, about 66 count (discounted Thompson sampling, Qi et al. 2023)
ARM_STEP_MEMORY = 0.99  # per step: an arm not tried for long is uncertain again
ARM_BELIEF = 1.0  # trials that the prior of an arm counts for
OWN_ARM_MEMORY = 0.98  # per step of one sequence
OWN_ARM_BELIEF = 4.0  # trials that shared beliefs count for beside a sequence's own
ARM_PRIOR = 1.0  # tokens per step of an untried drafter; a start value

# Token recycling:
# By rank of a successor; start values.
RANK_RATES = (0.36, 0.10, 0.055, 0.035, 0.025, 0.02, 0.015, 0.01)

# N-gram models of the target, and trees drawn from them:
CONTEXT_TRUST = (0.45, 0.8, 0.95)  # in a token's share, by length of the context; start values
PROMPT_TRUST = 0.5  # relative, in contexts known from prompts alone; a start value
DRAWN_EDGES = (0.3, 0.6, 0.85)  # bins of nodes by the probability of their candidates
# By rank of a drawn child and bin of its parent; start values.
DRAWN_RATES = (
    (0.2, 0.4, 0.65, 0.85),
    (0.1, 0.15, 0.15, 0.1),
    (0.05, 0.08, 0.08, 0.05),
)

# Trained drafters:
RECENT_ROWS = 128  # last rows of a prompt that a network reads even if others have cached them
PROMPT_ROWS = 1024  # rows before the first draft: fewer cost accepted tokens after long prompts
WAITING_ROWS = 256  # rows that may wait beyond those: bounds memory
# Relative to the request's: a network's distribution is wider than the target's.
DRAFT_TEMPERATURE = 0.9

# Learning while serving:
STRETCH_CONTEXT = 64  # rows before an example, as context
UPDATE_ROWS = 1024  # rows of an update: bounds its time
STRETCH_ROWS = 192  # rows of the longest example

# Retrieval:
LEAD = 8  # prompt tokens before an output in the history, so that its beginning is found
ABSORBED = 8  # tokens of ended sequences that the history takes in per step and sequence
BLEND_CONTEXTS = 2  # context lengths per source in mode blend
TRIED_CONTEXTS = 8  # longest contexts per source in modes path and tree
LOOKUP_DEPTHS = 10  # depths with hit rates of their own
