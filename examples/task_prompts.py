"""Prompts of many kinds for `paceline train data`: tasks about passages that the model wrote.

    python examples/task_prompts.py --prompts 9000 --out tasks.jsonl
    paceline train data tasks.jsonl --self-written 0.2

A drafter is as good as the texts it has seen. User turns that a small model makes up are short and
alike; here it writes passages first, and then summaries, answers, lists and translations are asked
of it, as users do with texts that they paste.
"""

import argparse
import json
import random
from pathlib import Path

import paceline

TOPICS = """
volcanoes; the Roman Empire; a broken bicycle; solar power; a lost dog; bread baking; chess; the
human heart; city traffic; an old lighthouse; penguins; a football final; coffee farming; black
holes; a village school; the French Revolution; a train strike; online shopping; bees; a museum
robbery; dentistry; the Great Wall of China; learning the piano; an election; coral reefs; a new
smartphone; immigration; jazz; a wedding; the moon landing; diabetes; a mountain rescue; renting
a flat; the printing press; wolves; yoga; a court case; electric cars; a flood; the Amazon
river; a job interview; vaccines; street food; earthquakes; a ghost story; the stock market;
tea; an airport delay; a space station; gardening; Shakespeare; photography; an oil spill; the
Olympic Games; a restaurant; DNA; the Cold War; a robot; insomnia; a desert; a bank merger; the
violin; a school play; recycling; a police chase; knights; a fishing boat; gravity; a library;
dreams; the Vikings; a heat wave; mobile games; a hospital; the tango; migration of birds; a
start-up; glaciers; the steam engine; a birthday; cyber security; a potato recipe; a marathon;
antibiotics; a castle; fashion; a water shortage; the Silk Road; a kitchen fire; owls; minimum
wage; a science fair; comets; opera; a bridge; an orphan; the internet; a rainforest; a data
breach; chocolate; an island; the brain; public libraries; a family dinner; wind; a lottery
winner; the Renaissance; ants; a hotel; a ship wreck; friendship; taxes; an apple tree;
probability; a detective; the Sahara; sleep; an army; a cat; energy drinks; philosophy; honey; a
fire brigade; inflation; a snow storm; plastic; a farmer; Mozart; maps; an escaped parrot; a
factory; time; a tax on sugar; quantum physics; a queen; windows; a mayor; cancer research;
swimming; an argument; rice; the Industrial Revolution; remote work; a theatre; elephants; a
lawsuit over a song; algebra; sand; honesty; a nurse; ancient Egypt; a power cut; video calls;
fractions; a treaty; mushrooms; a school bus; the ocean floor; a magic mirror; loneliness; a
ferry; the nervous system; a grandmother; democracy; a neighbour; cheese
"""

FORMS = (
    "a news report of about 150 words with names, places and figures about",
    "the beginning of an encyclopaedia article about",
    "a short blog post about",
    "a page of a story about",
    "an e-mail from one colleague to another about",
    "minutes of a meeting about",
    "a product review that has to do with",
    "an interview about",
    "a paragraph of a textbook about",
    "a short biography of a person known for",
    "a conversation between two friends about",
    "a newspaper opinion piece about",
)
ABOUT = (
    "Summarize: {0}",
    "Summarize the following text in three sentences.\n\n{0}",
    "{0}\n\nWhat is the main point of this text?",
    "Give this text a title and three keywords.\n\n{0}",
    "List all people, places and dates in the text below as JSON.\n\n{0}",
    "Extract the most important facts as bullet points:\n{0}",
    "Read the passage and answer: who is it about, and what happens?\n\n{0}",
    "Rewrite this text so that a child understands it.\n\n{0}",
    "Correct and improve the following text:\n\n{0}",
    "Is the tone of this text positive, negative or neutral? Explain.\n\n{0}",
    "Translate the following text to French: {0}",
    "Write three questions about this text and answer them.\n\n{0}",
    "Continue this text:\n\n{0}",
    "Turn this into a formal letter.\n\n{0}",
)
DIRECT = (
    "Write a short poem about {0}.",
    "Explain {0} to a beginner.",
    "What are the advantages and disadvantages of {0}?",
    "Write an essay of four paragraphs about {0} with examples.",
    "Imagine you are an expert on {0}. A visitor asks what matters most. Answer as yourself.",
    "You are a character in a story about {0}. Tell what you see and feel, and stay in the role.",
    "Compare {0} and {1}.",
    "What would happen if there were no such thing as {0}? Reason step by step.",
    "Tell the history of {0} in five dates.",
    "Write a Python function about {0}: a class with two methods, and comments.",
    "Write a small program, in any language, for a shop that deals with {0}.",
    "Give me a plan for a week that has to do with {0}.",
    "Write a dialogue in which two people disagree about {0}.",
    "Which science helps us to understand {0}, and how?",
    "How did {0} influence literature, music or art?",
    "Write a persuasive e-mail about {0}.",
    "Describe {0} vividly, using all five senses.",
    "Give ten facts about {0} as a numbered list.",
    "There are {2} people who care about {0} and {3} who care about {1}; {4} care about both. "
    "How many are there in all? Explain.",
    "Define {0} and name three common mistakes that people make about it.",
    "What do {0} and {1} have in common?",
    "Draft a blog post titled: What {0} taught me.",
    "Who was important for {0}, and when?",
    "Make a table with two columns about {0}.",
)


def main() -> None:
    """Write the prompts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=9000)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    topics = " ".join(TOPICS.split()).split("; ")
    engine = paceline.load("smollm2-135m", drafter="none", max_batch=32)

    def answers(requests: list[str], tokens: int) -> list[str]:
        how = {"temperature": 0.9, "top_p": 0.95, "seed": options.seed, "max_new_tokens": tokens}
        chats = [[{"role": "user", "content": each}] for each in requests]
        return [each.text.strip() for each in engine.generate(chats, **how)]

    some = options.prompts // 8
    chosen = [draw.choice(topics) for _ in range(2 * some)]
    passages = answers([f"Write {draw.choice(FORMS)} {each}." for each in chosen], 200)
    questions = answers(
        [
            f"Write one short question that has to do with {draw.choice(topics)}."
            for _ in range(some)
        ],
        40,
    )
    german = answers(
        [f"Translate to German: {'. '.join(each.split('. ')[:2])}" for each in passages[:some]], 80
    )

    prompts = [draw.choice(ABOUT).format(each) for each in passages]
    prompts += [draw.choice(ABOUT).format(each) for each in passages[::2]]
    prompts += questions
    prompts += [f"Translate German to English: {each}" for each in german]
    for asked in questions[: some // 2]:
        found = "\n\n".join(draw.sample(passages, 2))
        prompts.append(f"Answer the question with the help of these texts.\n\n{found}\n\n{asked}")
    while len(prompts) < options.prompts:
        names = draw.sample(topics, 2)
        few, more = sorted(draw.sample(range(5, 60), 2))
        prompts.append(draw.choice(DIRECT).format(*names, more, more + few, few))
    draw.shuffle(prompts)
    lines = [json.dumps({"prompt": each}) for each in prompts if each.strip()]
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
