"""Admission: how much accepted work there may be, counted before any of it costs anything."""

from __future__ import annotations

from paceline.errors import InvalidOption, PacelineError


class Busy(PacelineError):
    """The server has accepted as much as its limits allow: try again later."""


class Closed(PacelineError):
    """The server is loading or draining, and takes no requests."""


class Gate:
    """Count accepted sequences and prompt tokens. Not thread-safe: for the event loop."""

    def __init__(self, sequences: int, tokens: int | None) -> None:
        """Set the most sequences, and prompt tokens, accepted at a time; None sets no limit."""
        self.most, self._most_tokens = sequences, tokens
        self.sequences = 0
        self.tokens = 0
        self.refused = 0
        self.closed: str | None = "the model is loading"

    def enter(self) -> Ticket:
        """Accept a request; raises Closed, or Busy if not one more sequence fits."""
        if self.closed is not None:
            raise Closed(f"{self.closed}: try again later or elsewhere")
        ticket = Ticket(self)
        ticket.hold(1, 0)
        return ticket

    def take(self, sequences: int, tokens: int) -> None:
        """Count more work, or raise Busy and count nothing."""
        more = self.sequences + sequences
        if sequences > 0 and more > self.most:
            self.refused += 1
            raise Busy(
                f"the server holds {self.sequences} of {self.most} sequences and this request "
                f"asks for {sequences} more: try again later"
            )
        # A prompt beyond the limit is served when nothing else is there.
        most, more_tokens = self._most_tokens, self.tokens + tokens
        if tokens > 0 and most is not None and self.tokens and more_tokens > most:
            self.refused += 1
            raise Busy(
                f"the server holds {self.tokens} of {most} prompt tokens and this request has "
                f"{tokens}: try again later"
            )
        self.sequences, self.tokens = more, more_tokens


class Ticket:
    """What one HTTP request holds of the gate, until `leave`."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._sequences = 0
        self._tokens = 0

    def hold(self, sequences: int, tokens: int) -> None:
        """Hold so much from now on, instead of what was held.

        Raises:
            Busy: it does not fit now.
            InvalidOption: it never fits.
        """
        if sequences > self._gate.most:
            raise InvalidOption(
                f"n: the request asks for more answers than this server takes at a time: ask for "
                f"{self._gate.most} or fewer"
            )
        self._gate.take(sequences - self._sequences, tokens - self._tokens)
        self._sequences, self._tokens = sequences, tokens

    def leave(self) -> None:
        self.hold(0, 0)
