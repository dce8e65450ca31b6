"""What the agent is asked to do with the project's files."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.bench.workspace import FILES, TEST_OUTPUT


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work for the agent.

    Attributes:
        name: short and unique.
        goal: what is asked for.
        files: what the planner and the refiner are shown.
        steps: three steps to take where the model's own plan has fewer.
        calls: by step, a call of a tool and what it returns.
        review: what a reviewer says of every draft.
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
"""Eight tasks that share files, as the work of one afternoon does."""
