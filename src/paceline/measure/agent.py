"""The agentic workload: plan, parallel workers, rounds of self-refinement.

Later prompts quote earlier answers, files come back in every step that reads them, and drafts are
pasted back to be improved, as in practice. So that all engines see the same prompts, the answers
that are quoted are always those of plain decoding.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from paceline.core.types import SamplingParams
from paceline.engine.engine import Engine, Prompt
from paceline.errors import PromptError
from paceline.measure.prompts import BenchPrompt
from paceline.measure.report import BASELINE
from paceline.measure.run import Playing, Race, Record, Run, Workload, decode

# Files of a small made-up project:

_BOOKING = '''\
"""Bookings of a ferry."""

CAR_METRES = 5
TRUCK_METRES = 14


class Sailing:
    def __init__(self, route, departs, metres, seats):
        self.route = route
        self.departs = departs
        self.metres = metres
        self.seats = seats
        self.bookings = []

    def free_metres(self):
        used = 0
        for booking in self.bookings:
            used += booking["metres"]
        return self.metres - used

    def free_seats(self):
        used = 0
        for booking in self.bookings:
            used += booking["people"]
        return self.seats - used

    def book(self, name, people, cars=0, trucks=0):
        metres = cars * CAR_METRES + trucks * TRUCK_METRES
        if people > self.free_seats():
            raise ValueError("not enough seats")
        if metres > self.free_metres():
            raise ValueError("not enough deck")
        booking = {"name": name, "people": people, "metres": metres}
        self.bookings.append(booking)
        return booking

    def cancel(self, name):
        for booking in self.bookings:
            if booking["name"] == name:
                self.bookings.remove(booking)
                return True
        return False


def price(people, cars=0, trucks=0, season="low"):
    total = people * 12 + cars * 30 + trucks * 95
    if season == "high":
        total = total * 1.2
    return total
'''

_TEST_BOOKING = """\
from booking import Sailing, price


def test_book_takes_seats():
    sailing = Sailing("Norden-Juist", "08:30", 60, 4)
    sailing.book("Olsen", 3)
    assert sailing.free_seats() == 1


def test_book_takes_deck():
    sailing = Sailing("Norden-Juist", "08:30", 60, 4)
    sailing.book("Lind", 1, cars=2)
    assert sailing.free_metres() == 50


def test_high_season_is_rounded():
    assert price(1, season="high") == 14
"""

_SETTINGS = """\
line: Sound Ferries
currency: EUR
harbours:
  norden:
    code: NOR
    opens: "05:30"
    closes: "22:00"
    berths: 2
    phone: 04931 1001
  juist:
    code: JUI
    opens: "06:00"
    closes: "21:30"
    berths: 1
    phone: 04935 2002
ships:
  - name: Seagull
    seats: 240
    metres: 120
  - name: Tern
    seats: 90
    metres: 60
"""

_SAILINGS = """\
date,route,ship,people,cars,trucks,minutes_late
2025-06-02,Norden-Juist,Seagull,212,18,1,0
2025-06-02,Juist-Norden,Seagull,180,15,0,4
2025-06-03,Norden-Juist,Tern,64,7,0,12
2025-06-03,Juist-Norden,Tern,71,9,1,0
2025-06-04,Norden-Juist,Seagull,233,20,2,25
2025-06-04,Juist-Norden,Seagull,140,11,0,0
2025-06-05,Norden-Juist,Tern,58,6,0,3
2025-06-05,Juist-Norden,Tern,87,9,0,0
"""

_HISTORY = """\
e41c book: refuse trucks that do not fit on the deck
d9a0 price: high season costs a fifth more
c7f3 cancel: return whether there was such a booking
b615 settings: harbour Juist closes at 21:30
a2d8 tests: seats and deck
90be book: count people, not bookings
7fa4 readme: how to run the tests
"""

_MEETING = """\
Anke: The Tern was twelve minutes late on Tuesday. The ramp at Norden was stuck.
Piet: I will grease the ramp before Friday and write down how long it takes.
Anke: Customers ask why the price in high season has cents. We should round it.
Jona: I can round prices to whole euros this week. Who tells the ticket office?
Anke: I will call the ticket office on Wednesday.
Piet: The new harbour at Norderney opens on 1 July. It is not in the settings yet.
Jona: Then I add Norderney to the settings, with one berth, and ask for its phone number.
Anke: Good. We meet again on 16 June and look at the delays.
"""

_POLICY = """\
# Refunds

- A booking that is cancelled two days or more before it departs is refunded in full.
- A booking that is cancelled later is refunded by half.
- If the line cancels a sailing, the booking is refunded in full, or moved to another sailing.
- If a sailing is more than 60 minutes late, people get 25% of the price back on request.
- Refunds go to the card that was paid with and take up to ten days.
- Deck space for trucks is not refunded on the day of departure.
"""

_LETTER = """\
Good morning, on 4 June I was to take the Seagull from Norden to Juist with my car. On 3 June my
daughter fell ill and I cancelled by telephone. Nobody told me whether I get my money back. I paid
42 euros by card. Please tell me what I can expect and when. Kind regards, Ruth Behrends
"""

_FAILURE = """\
test_booking.py ..F
    def test_high_season_is_rounded():
>       assert price(1, season="high") == 14
E       assert 14.399999999999999 == 14
1 failed, 2 passed"""

FILES: dict[str, str] = {
    "booking.py": _BOOKING,
    "test_booking.py": _TEST_BOOKING,
    "settings.yaml": _SETTINGS,
    "sailings.csv": _SAILINGS,
    "history.log": _HISTORY,
    "meeting.txt": _MEETING,
    "policy.md": _POLICY,
    "letter.txt": _LETTER,
}

TEST_OUTPUT = _FAILURE


# What the agent is asked to do with the project's files.


@dataclass(frozen=True, slots=True)
class Task:
    """One task of the agent.

    Attributes:
        files: shown to the planner and the refiner.
        steps: taken where the model's own plan has fewer.
        calls: by step, a tool call and what it returns.
        review: of every draft.
    """

    name: str
    goal: str
    files: tuple[str, ...]
    steps: tuple[str, str, str]
    calls: tuple[tuple[str, str], tuple[str, str], tuple[str, str]]
    review: str


def _read(name: str) -> tuple[str, str]:
    return f'read_file("{name}")', FILES[name]


_TESTS = ("run_tests()", TEST_OUTPUT)

TASKS: tuple[Task, ...] = (
    Task(
        "docstrings",
        "Add a docstring of one line to every method of the class Sailing in booking.py.",
        ("booking.py",),
        (
            "Write docstrings for free_metres and free_seats.",
            "Write docstrings for book and cancel.",
            "Return the whole file with all docstrings.",
        ),
        (_read("booking.py"), _read("booking.py"), _read("booking.py")),
        "Each docstring shall say what is returned and which errors are raised.",
    ),
    Task(
        "rounding",
        "A test fails. Change the function price in booking.py so that it returns whole euros.",
        ("booking.py", "test_booking.py"),
        (
            "Find out which test fails and why.",
            "Change the function price.",
            "Add a test of a price with a car in high season.",
        ),
        (_TESTS, _read("booking.py"), _read("test_booking.py")),
        "Keep all other functions as they are.",
    ),
    Task(
        "harbour",
        "Add the harbour Norderney to settings.yaml, with what the minutes of the meeting say.",
        ("settings.yaml", "meeting.txt"),
        (
            "List what is known of the harbour.",
            "Write the new entry in the form of the others.",
            "Return the whole file with the new entry.",
        ),
        (_read("meeting.txt"), _read("settings.yaml"), _read("settings.yaml")),
        "Do not change the harbours that are there, and keep the order of the keys.",
    ),
    Task(
        "release-notes",
        "Write release notes for customers from history.log, newest change first.",
        ("history.log",),
        (
            "List the changes that customers can see.",
            "Explain the change of price with its place in the code.",
            "Write the notes as a list.",
        ),
        (_read("history.log"), _read("booking.py"), _read("history.log")),
        "Leave out changes of tests, and put the letters and digits of each change first.",
    ),
    Task(
        "actions",
        "Make a list of actions from the minutes: who does what until when.",
        ("meeting.txt",),
        (
            "List what Piet promised.",
            "List what Jona promised.",
            "List what Anke promised, and the next meeting.",
        ),
        (_read("meeting.txt"), _read("meeting.txt"), _read("meeting.txt")),
        "Quote the sentence that each action comes from.",
    ),
    Task(
        "delays",
        "Write a short report about late sailings from sailings.csv, with a table.",
        ("sailings.csv",),
        (
            "List the sailings that were late.",
            "Find the causes in the minutes of the meeting.",
            "Write the table with date, route, ship and minutes.",
        ),
        (_read("sailings.csv"), _read("meeting.txt"), _read("sailings.csv")),
        "Show the rows as they are in the file.",
    ),
    Task(
        "refund",
        "Answer the customer's letter according to policy.md.",
        ("letter.txt", "policy.md"),
        (
            "Say which rule applies to the letter.",
            "Work out how much money is refunded.",
            "Write the answer to the customer.",
        ),
        (_read("policy.md"), _read("letter.txt"), _read("letter.txt")),
        "Quote the rule, and say when the money arrives.",
    ),
    Task(
        "rename",
        "Rename the class Sailing to Crossing in booking.py and in test_booking.py.",
        ("booking.py", "test_booking.py"),
        (
            "Rename it in booking.py and return the whole file.",
            "Rename it in test_booking.py and return the whole file.",
            "List the lines that have changed.",
        ),
        (_read("booking.py"), _read("test_booking.py"), _read("booking.py")),
        "Return both files, one after the other.",
    ),
)


WORKERS = 3
ROUNDS = 2
PROMPTS = 1 + WORKERS + ROUNDS
"""Prompts of one task."""

_STEP_LENGTH = 200
_STEP = re.compile(r"^\W*(?:step\s*)?\d+\s*[.):-]\W*(.+)|^\s*[-*•]\s+(.+)", re.IGNORECASE)

_SYSTEM = """\
You are a careful assistant who works on a small software project for a ferry line. You can use \
these tools:

- read_file(name): returns the contents of a file.
- run_tests(): runs the tests and returns what they print.
- finish(text): hands in the result.

Work on one step at a time. When you change a file, return the whole file. Use only facts from \
the files. Do not explain what you are going to do."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Prompts that are answered before the next can be written: "plan", "work" or "refine"."""

    category: str
    names: tuple[str, ...]
    prompts: list[Prompt]


def stages(task: Task) -> Generator[Stage, list[str], None]:
    """Yield the stages of a task; each is answered by sending a text per prompt."""
    goal = f"Task: {task.goal}"
    files = _files(task.files)
    ask = f"Which {WORKERS} steps lead there? Answer with a numbered list, a sentence per step."
    [plan] = yield _stage("plan", ["plan"], [_chat(f"{files}\n\n{goal}\n\n{ask}")])
    steps = plan_steps(plan, task.steps)
    listed = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    working = []
    for number, (step, (call, result)) in enumerate(zip(steps, task.calls, strict=True), 1):
        working.append(
            _chat(
                f"{goal}\n\nPlan:\n{listed}\n\nYou called {call}. It returned:\n\n{result}\n\n"
                f"Now do step {number}: {step}"
            )
        )
    names = [f"work-{number}" for number in range(1, WORKERS + 1)]
    answers = yield _stage("work", names, working)
    drafts = "\n\n".join(f"Result {n}:\n\n{text}" for n, text in enumerate(answers, 1))
    text = (
        f"{files}\n\n{goal}\n\nThree workers did the steps of the plan.\n\n{drafts}\n\n"
        "Put their results together to one. Return the whole result."
    )
    for number in range(1, ROUNDS + 1):
        [draft] = yield _stage("refine", [f"refine-{number}"], [_chat(text)])
        text = (
            f"{files}\n\n{goal}\n\nThis is the draft:\n\n{draft}\n\n"
            f"A reviewer says: {task.review}\n\nImprove this. Return the whole result."
        )


def plan_steps(plan: str, otherwise: Sequence[str]) -> list[str]:
    """Return the first steps of a plan, its numbered or bulleted lines, filled up from `otherwise`.

    Small models plan poorly.
    """
    steps: list[str] = []
    for line in plan.splitlines():
        match = _STEP.match(line)
        step = (match[1] or match[2]).strip(" *_`")[:_STEP_LENGTH] if match else ""
        fresh = step.casefold() not in (known.casefold() for known in steps)
        if fresh and any(map(str.isalpha, step)):
            steps.append(step)
    return [*steps[:WORKERS], *otherwise[len(steps) :]][:WORKERS]


@dataclass(frozen=True)
class AgentLoop(Workload):
    """Tasks that a small agent works on; a group is a task."""

    tasks: Sequence[Task] = TASKS
    name: ClassVar[str] = "agentic"
    races: int = 2 + ROUNDS
    max_new_tokens: ClassVar[int] = 512  # a whole file, since prompts ask for it
    stop_loops: ClassVar[bool] = True  # else half of the tokens of a small model go in circles

    @property
    def groups(self) -> list[list[int]]:
        return [list(range(n * PROMPTS, (n + 1) * PROMPTS)) for n in range(len(self.tasks))]

    @property
    def opening(self) -> Prompt:
        return next(stages(self.tasks[0])).prompts[0]

    @property
    def content(self) -> str:
        return repr([(task, _played(task, "")) for task in self.tasks])

    def check(self, engine: Engine, params: SamplingParams) -> None:
        # With the longest answers.
        if engine.tokenizer.chat_template is None:
            raise PromptError("the model has no chat template: use --workload prompts")
        for task in self.tasks:
            for stage in _played(task, " word" * params.max_new_tokens):
                for name, prompt in zip(stage.names, stage.prompts, strict=True):
                    try:
                        engine.cancel(engine.add(prompt, params))
                    except PromptError as error:
                        raise PromptError(f"task {task.name}, {name}: {error}") from error

    def play(self, group: Sequence[int], race: Race, params: SamplingParams) -> list[Record]:
        task = self.tasks[group[0] // PROMPTS]
        records: list[Record] = []
        left = stages(task)
        stage: Stage | None = next(left)
        while stage is not None:
            answers = race.run(partial(decode, prompts=stage.prompts, params=params))
            for place, name in enumerate(stage.names):
                runs = {drafter: Run() for drafter in answers}
                for drafter, run in runs.items():
                    run.add(answers[drafter][place])
                number = group[len(records)]
                records.append(Record(number, f"{task.name}/{name}", stage.category, runs))
            stage = _answer(left, [each.text for each in answers[BASELINE]])
        return records


def _played(task: Task, answer: str) -> list[Stage]:
    left = stages(task)
    stage: Stage | None = next(left)
    out = []
    while stage is not None:
        out.append(stage)
        stage = _answer(left, [answer] * len(stage.prompts))
    return out


def _answer(left: Generator[Stage, list[str], None], answers: list[str]) -> Stage | None:
    try:
        return left.send(answers)
    except StopIteration:
        return None


def _stage(category: str, names: Sequence[str], chats: Sequence[list[dict[str, str]]]) -> Stage:
    return Stage(category, tuple(names), list(chats))


def _chat(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": text}]


def _files(names: Sequence[str]) -> str:
    return "\n\n".join(f"File {name}:\n\n{FILES[name]}" for name in names)


# The workload of a prompt file:


@dataclass(frozen=True)
class Dialogues(Workload):
    """Prompts whose user turns are known beforehand, `batch` of them decoded together.

    `all_turns` plays dialogues to their end (or until the context is full) with the model's own
    answers in between, instead of the first turn alone.
    """

    prompts: Sequence[BenchPrompt]
    batch: int = 1
    all_turns: bool = False
    name: ClassVar[str] = "prompts"

    @property
    def groups(self) -> list[list[int]]:
        numbers = list(range(len(self.prompts)))
        return [numbers[start : start + self.batch] for start in numbers[:: self.batch]]

    @property
    def opening(self) -> Prompt:
        return self.prompts[0].turns[0]

    @property
    def content(self) -> str:
        return repr([(p.question_id, p.category, p.turns) for p in self.prompts])

    def check(self, engine: Engine, params: SamplingParams) -> None:
        for prompt in self.prompts:
            try:
                engine.cancel(engine.add(prompt.turns[0], params))
            except PromptError as error:
                raise PromptError(f"question {prompt.question_id}: {error}") from error

    def play(self, group: Sequence[int], race: Race, params: SamplingParams) -> list[Record]:
        chosen = [self.prompts[number] for number in group]
        turns = max(len(prompt.turns) for prompt in chosen) if self.all_turns else 1
        runs = race.run(partial(_play, prompts=chosen, params=params, turns=turns))
        return [
            Record(
                number,
                prompt.question_id,
                prompt.category,
                {name: mine[place] for name, mine in runs.items()},
            )
            for place, (number, prompt) in enumerate(zip(group, chosen, strict=True))
        ]


def _play(
    engine: Engine, prompts: Sequence[BenchPrompt], params: SamplingParams, turns: int
) -> Playing[list[Run]]:
    runs = [Run() for _ in prompts]
    dialogues: list[list[dict[str, str]]] = [[] for _ in prompts]
    for turn in range(turns):
        places, asked = [], []
        for place, prompt in enumerate(prompts):
            if turn >= len(prompt.turns):
                continue
            message = {"role": "user", "content": prompt.turns[turn]}
            request: Prompt = [*dialogues[place], message] if turn else prompt.turns[0]
            if turn and not _fits(engine, request):
                continue  # the context is full: the dialogue ends here
            dialogues[place].append(message)
            places.append(place)
            asked.append(request)
        completions = yield from decode(engine, asked, params)
        for place, completion in zip(places, completions, strict=True):
            runs[place].add(completion)
            dialogues[place].append({"role": "assistant", "content": completion.text})
    return runs


def _fits(engine: Engine, prompt: Prompt) -> bool:
    try:
        engine.cancel(engine.add(prompt))
    except PromptError:
        return False
    return True
