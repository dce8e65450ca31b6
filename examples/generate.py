"""One prompt, then a ragged batch of three, with the figures that explain the speed."""

import paceline

engine = paceline.load("smollm2-135m")
answer = engine.generate("Why is the sky blue?", max_new_tokens=80)
print(answer.text)
print(f"{answer.stats.tokens_per_second:.1f} tokens/s, ", end="")
print(f"{answer.stats.block_efficiency:.2f} tokens per forward of the model")

questions = ["Name a river in Peru.", "What is 17 + 25?", "Translate to French: good morning."]
for question, answer in zip(questions, engine.generate(questions, max_new_tokens=30), strict=True):
    print(f"\n{question}\n{answer.text}")
