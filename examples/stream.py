"""Text as it becomes final, sampled with a seed: the same text with any drafter, or none."""

import paceline

engine = paceline.load("smollm2-135m", drafter="recycling")
messages = [
    {"role": "system", "content": "You answer in rhymes."},
    {"role": "user", "content": "Tell me about the sea."},
]
for piece in engine.stream(messages, temperature=0.8, top_p=0.95, seed=7, max_new_tokens=80):
    print(piece, end="", flush=True)
print()
