"""An answer that goes on from its first tokens is the one that it would have been."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.helpers import table_engines as engines

from paceline.core.types import SamplingParams
from paceline.errors import InvalidOption, PromptError

PARAMS = {
    "greedy": SamplingParams(max_new_tokens=24),
    "sampled": replace(engines.SAMPLED, frequency_penalty=0.5, min_p=0.02),
    "stops": replace(engines.SAMPLED, stop=("e", "ow"), min_tokens=3),
    "kept stop": replace(engines.SAMPLED, stop=("e",), keep_stop=True),
}


@pytest.mark.parametrize("name", engines.drafters())
@pytest.mark.parametrize("kind", PARAMS)
def test_the_rest_is_what_would_have_followed(name: str, kind: str) -> None:
    params = PARAMS[kind]
    for prompt in engines.PROMPTS[:3]:
        events = list(engines.make().events(prompt, params))
        whole = events[-1].completion
        assert whole is not None
        said, text = [], ""
        for event in events[:-1]:
            said += event.token_ids
            text += event.text
            engine = engines.make(drafter=engines.drafters()[name])
            rest = list(engine.events(prompt, params, resume=said))
            assert said + [t for each in rest for t in each.token_ids] == list(whole.token_ids)
            assert text + "".join(each.text for each in rest) == whole.text
            assert rest[-1].completion is not None
            assert engines.key(rest[-1].completion) == engines.key(whole)


def test_log_probabilities_are_those_of_the_rest() -> None:
    params = replace(engines.SAMPLED, logprobs=2)
    whole = engines.make().generate("dog", params)
    rest = engines.make().generate("dog", params, resume=whole.token_ids[:5])
    assert rest.logprobs == whole.logprobs[5:]


def test_an_answer_that_has_ended_does_not_go_on() -> None:
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    whole = engines.make().generate("dog", params)
    engine = engines.make()
    with pytest.raises(PromptError, match="ended after 4 tokens"):
        engine.add("dog", params, resume=whole.token_ids)
    with pytest.raises(PromptError, match="holds token"):
        engine.add("dog", params, resume=[engines.VOCABULARY])
    assert engine.pending == 0


def test_a_constraint_holds_across_the_seam() -> None:
    engine = engines.make()
    pytest.importorskip("llguidance")
    constraint = engine.grammar.regex("[a-f]{6}")
    whole = engine.generate("dog", engines.SAMPLED, constraint=constraint)
    for size in range(1, len(whole.token_ids) - 1):
        resume = whole.token_ids[:size]
        rest = engine.generate("dog", engines.SAMPLED, constraint=constraint, resume=resume)
        assert rest.token_ids == whole.token_ids
    wrong = engines.TOKENIZER.encode("z")
    with pytest.raises(InvalidOption, match="not what"):
        engine.add("dog", engines.SAMPLED, constraint=constraint, resume=wrong)
