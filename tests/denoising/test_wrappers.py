"""Wrappers of rules: what they change by hand, and settings that change nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.helpers.canvases import decode, decoder_of, random_laws, start, view_of

from paceline.core.types import CanvasParams
from paceline.errors import InvalidOption
from paceline.methods.canvas.learned_filter import Filter
from paceline.proof.table_denoiser import TableDenoiser, random_joint
from paceline.registry.samplers import make_sampler

PARAMS = ({}, {"temperature": 1.0, "seed": 3})
INNER = ("counts", "counts:per_step=2", "threshold:tau=0.6", "local-leap:tau=0.7,relaxed=0.5")


def table(index: int, places: int = 6, sharpness: float = 2.0, **facts: object) -> TableDenoiser:
    return TableDenoiser(random_joint(3, places, index, sharpness), **facts)  # type: ignore[arg-type]


def trace(sampler: str, index: int, **params: object) -> list[object]:
    return decode(table(index), sampler, **params).work.process.canvas.trace


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize(
    ("off", "usual"),
    [
        ("credit:alpha=0", "credit:alpha=2"),
        ("prophet:early=inf,middle=inf,late=inf", "prophet:early=1,middle=1,late=1"),
        ("revise:share=0", "revise"),
        ("revise:least=1", "revise"),
        ("revise:after=9", "revise"),
    ],
)
@pytest.mark.parametrize("params", PARAMS)
def test_switched_off_they_are_the_inner_rule(inner, off, usual, params):
    plain = [trace(inner, i, **params) for i in range(12)]
    assert [trace(f"{off}>{inner}", i, **params) for i in range(12)] == plain
    if usual != "revise" or inner == "counts:per_step=2":  # those fill what needs revision
        assert [trace(f"{usual}>{inner}", i, **params) for i in range(12)] != plain


def test_credits_are_those_of_the_formula():
    probs = [random_laws(3, 4, seed) for seed in range(3)]
    rule = make_sampler("credit:alpha=0.7,gamma=0.2,beta=0.8>counts")
    state = rule.begin(view_of(probs[0]).canvas)
    credits = np.zeros((3, 4))
    for step, each in enumerate(probs):
        view = view_of(each)
        credits *= 0.8 if step else 1
        for row in range(3):
            credits[row, each[row].argmax()] += each[row].max() ** 0.2
        want = np.log(each) + 0.7 * np.log(1 + credits)
        want = np.exp(want) / np.exp(want).sum(axis=1, keepdims=True)
        assert np.abs(rule.view(view, state).probs - want).max() < 1e-12


def test_credits_make_a_constant_prediction_surer_and_never_change_it():
    for seed in range(20):
        rule = make_sampler("credit>counts")
        view = view_of(random_laws(5, 4, seed))
        state = rule.begin(view.canvas)
        last = view.confidence
        for _ in range(4):
            found = rule.view(view, state)
            assert (found.picks == view.picks).all()
            assert (found.confidence > last).all()
            last = found.confidence


@pytest.mark.parametrize("inner", INNER)
def test_prophet_fills_the_rest_by_the_picks_at_its_exit(inner):
    early = 0
    for index in range(25):
        target = table(index)
        plain = trace(inner, index)
        found = trace(f"prophet:early=2,middle=1.5,late=1>{inner}", index)
        exit = found[-1].step
        before = [fill for fill in found if fill.step < exit]
        assert before == [fill for fill in plain if fill.step < exit]
        assert exit <= plain[-1].step
        early += exit < plain[-1].step
        known = [(fill.place, fill.token) for fill in before]
        for fill in found[len(before) :]:
            assert fill.token == target.conditional(fill.place, known).argmax()
    assert early or inner != "counts"
    everything = decode(table(0), f"prophet:early=-inf>{inner}")
    assert everything.stats.target_forwards == 1


def test_prophet_asks_less_of_later_steps():
    rule = make_sampler("prophet:early=7,middle=5,late=2.5>counts")
    distribution = np.exp([0, -4.0, -30]) / np.exp([0, -4.0, -30]).sum()
    for left, count in ((9, 1), (6, 1), (4, 1), (3, 3), (1, 1)):
        view = view_of(np.tile(distribution, (left, 1)), list(range(9 - left, 9)))
        assert len(rule.choose(view, rule.begin(view.canvas)).fill) == count


def test_prophet_does_not_count_places_with_one_token_left():
    """Such as where a constraint allows one: the gap to what is banned is infinite."""
    rule = make_sampler("prophet:early=7,middle=5,late=2.5>counts")
    view = view_of(np.tile([0.6, 0.4, 0.0], (9, 1)), list(range(9)))
    view.scores[0] = [0, -np.inf, -np.inf]
    assert len(rule.choose(view, rule.begin(view.canvas)).fill) == 1
    view.scores[1:] = [-np.inf, 0, -np.inf]
    assert len(rule.choose(view, rule.begin(view.canvas)).fill) == 9


def test_revised_places_hold_what_the_model_says_given_the_others():
    edits = 0
    for index in range(30):
        target = table(index, sharpness=3.0)
        decoder = decoder_of(target)
        sequence = start(target, CanvasParams("revise>counts:per_step=2"), forced_tokens={1: 2})
        decoder.admit(sequence)
        canvas = sequence.work.process.canvas
        while len(canvas.masked()) and sequence.finish_reason is None:
            before = list(canvas.tokens)
            decoder.step([sequence])
            for place in range(target.begin, target.begin + 6):
                if before[place] != target.mask and place != target.begin + 1:
                    known = [
                        (p, t) for p, t in enumerate(before) if t != target.mask and p != place
                    ]
                    assert canvas.tokens[place] == target.conditional(place, known).argmax()
                    edits += canvas.tokens[place] != before[place]
        assert sequence.generated[1] == 2  # what was given stays
        assert sequence.generated == canvas.tokens[target.begin :]  # what was shown was final
    assert edits > 5


def jointly(target, tokens: list[int], tau: float, least: float, post: int) -> int:
    """Fill and edit as LLaDA2.1's authors do, to the end, and return the forwards."""
    own, alone = range(target.begin, target.begin + 6), 0
    for forwards in range(1, 99):
        known = [(place, token) for place, token in enumerate(tokens) if token != target.mask]
        laws = {i: target.conditional(i, [each for each in known if each[0] != i]) for i in own}
        masked = [i for i in own if tokens[i] == target.mask]
        alone += not masked
        sure = [i for i in masked if laws[i].max() > tau]
        sure = sure or sorted(masked, key=lambda i: -laws[i].max())[:1]
        wrong = [i for i in own if i not in masked and tokens[i] != laws[i].argmax()]
        changed = sure + [i for i in wrong if laws[i].max() > least]
        for i in changed:
            tokens[i] = int(laws[i].argmax())
        if not masked and (not changed or alone == post):
            return forwards
    raise AssertionError("it never ends")


@pytest.mark.parametrize(("tau", "least", "post"), [(0.7, 0.5, 16), (0.5, 0.0, 16), (0.5, 0.0, 2)])
def test_a_full_block_is_edited_until_nothing_changes(tau: float, least: float, post: int):
    """Beside the loop itself; without these steps texts end otherwise."""
    more, other = 0, 0
    for index in range(30):
        target = table(index, sharpness=3.0)
        sampler = f"revise:least={least},post={post}>threshold:tau={tau}"
        decoder = decoder_of(target)
        sequence = start(target, CanvasParams(sampler))
        decoder.admit(sequence)
        tokens, forwards = list(sequence.work.process.canvas.tokens), 0
        while sequence.finish_reason is None:
            decoder.step([sequence])
            forwards += 1
        assert forwards == jointly(target, tokens, tau, least, post)
        assert sequence.generated == tokens[target.begin :]
        plain = decode(table(index, sharpness=3.0), f"revise:least={least}>threshold:tau={tau}")
        other += plain.generated != sequence.generated
        more += forwards > plain.stats.target_forwards
    assert more > 5
    assert other or least == 0.5  # few are wrong there


def test_open_blocks_go_into_no_other_rule():
    with pytest.raises(InvalidOption, match="'credit' does not go around 'revise', which has step"):
        make_sampler("credit>revise:post=2>counts")
    make_sampler("credit>revise>counts")


def test_logprobs_are_those_of_the_edited_tokens():
    edited = 0
    for index in range(10):
        found = decode(table(index), "revise>counts:per_step=3", logprobs=1)
        assert [each.token_id for each in found.logprobs] == found.generated
        edited += len(found.work.process.canvas.trace) > 6
    assert edited


def test_edits_have_a_limit_a_bound_and_a_share():
    filled, edits = view_of(random_laws(4, 3, 0, 3.0)), []
    for options in ("revise", "revise:most=3", "revise:least=0.8", "revise:share=0.5"):
        rule = make_sampler(f"{options}>counts")
        view = view_of(random_laws(3, 3, 1), [4, 5, 6])
        state = rule.begin(view.canvas)
        view.canvas.tokens[:4] = ((filled.picks + 1) % 3).tolist()  # all are wrong
        view.filled = filled
        edits.append([rule.choose(view, state).edit for _ in range(2)])
    everything, most, least, share = edits
    assert sorted(everything[0]) == list(enumerate(filled.picks.tolist()))
    assert [len(each) for each in most] == [3, 0]
    assert {place for place, _ in least[0]} == set(np.flatnonzero(filled.confidence > 0.8))
    assert 0 < len(least[0]) < 4
    assert {place for place, _ in share[0]} == set(np.argsort(-filled.confidence)[:2])


def weights(path: Path, block: int, bias: float = 0.0, scale: float = 1.0, seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    tensors = {
        "in.weight": rng.normal(size=(8, block)) * scale,
        "in.bias": rng.normal(size=8) * scale,
        "out.weight": rng.normal(size=(block, 8)) * scale,
        "out.bias": np.full(block, bias),
    }
    save_file({name: each.astype(np.float32) for name, each in tensors.items()}, path)
    return f"filter:weights={path},tau=0.7"


def test_a_filter_that_says_yes_or_no_to_all(tmp_path):
    yes = weights(tmp_path / "yes", 3, bias=50, scale=0)
    no = weights(tmp_path / "no", 3, bias=-50, scale=0)
    for index in range(8):
        assert trace(no, index, block=3) == trace("counts", index, block=3)
        assert [fill.step for fill in trace(yes, index, block=3)] == [0, 0, 0, 1, 1, 1]


def test_a_filter_is_its_network(tmp_path):
    rule = Filter(weights(tmp_path / "w", 6, seed=4).split("=")[1].split(",")[0], 0.7)
    a, b, c, d = rule._layers
    sizes = set()
    for seed in range(60):
        places = sorted(np.random.default_rng(seed).choice(6, 4, replace=False).tolist())
        view = view_of(random_laws(4, 3, seed), places)
        view.canvas.tokens += [0] * (6 - len(view.canvas.tokens))
        view.canvas.block = range(6)
        x = np.ones(6)
        x[places] = view.confidence
        right = 1 / (1 + np.exp(-(c @ np.maximum(a @ x + b, 0) + d))) > 0.7
        want = {place for place in places if right[place]} | {places[view.confidence.argmax()]}
        assert set(view.places[rule.choose(view, None).fill].tolist()) == want
        sizes.add(len(want))
    assert len(sizes) > 2


def test_bad_filters_are_named(tmp_path):
    with pytest.raises(InvalidOption, match="cannot be read"):
        Filter(str(tmp_path / "missing"))
    save_file({"in.weight": np.zeros((2, 2), dtype=np.float32)}, tmp_path / "half")
    with pytest.raises(InvalidOption, match=r"in\.bias"):
        Filter(str(tmp_path / "half"))
    with pytest.raises(InvalidOption, match="blocks of 3 places, not 6"):
        decode(table(0), weights(tmp_path / "w", 3))


@pytest.mark.parametrize("sampler", ["counts", "threshold:tau=0.5", "credit>factor"])
def test_a_cut_at_the_end_token_asks_less_for_the_same_text(sampler):
    saved = 0
    for index in range(6):
        plain = decode(table(index, 3), sampler, max_new_tokens=12)
        cut = decode(table(index, 3), sampler, max_new_tokens=12, ending="cut")
        assert cut.generated == plain.generated
        saved += plain.stats.position_evaluations - cut.stats.position_evaluations
    assert saved > 0


def test_a_view_with_other_scores_keeps_what_is_filled():
    view = view_of(random_laws(3, 3, 0))
    view.filled = view_of(random_laws(2, 3, 1))
    assert view.rescored(view.scores * 2).filled is view.filled
