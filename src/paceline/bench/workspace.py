"""Files of a small made-up project: a ferry line and its booking program."""

from __future__ import annotations

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
"""Contents by name."""

TEST_OUTPUT = _FAILURE
"""What the project's tests print."""
