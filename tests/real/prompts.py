"""Prompts of several kinds for tests on the real model."""

PROMPTS = [
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Translate to German: The train leaves at seven, and we must not be late.",
    "Tom has 12 apples. He gives 3 to Ann and buys 7 more. How many apples has Tom? Explain.",
    "Repeat this list twice: red, green, blue, yellow, red, green, blue, yellow.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Summarise: Bees visit flowers for nectar. While they do, pollen sticks to them and is "
    "carried from flower to flower. Without bees, many plants could not make seeds.",
    "Who wrote the play Hamlet, and when?",
    "Make a table of three countries with their capitals and languages.",
]
