"""Admission: how much accepted work there may be, counted before any of it costs anything."""

from __future__ import annotations

from paceline.errors import InvalidOption, PacelineError


class Busy(PacelineError):
    """The server has accepted as much as its limits allow: try again later."""


class Closed(PacelineError):
    """The server is loading or draining, and takes no requests."""


class Gate:
    """Count accepted sequences, prompt tokens and sound. For the event loop, not thread-safe."""

    def __init__(self, sequences: int, tokens: int | None, seconds: float | None = None) -> None:
        """Set the most sequences, prompt tokens and seconds of sound accepted at a time.

        None sets no limit.
        """
        self.most, self._most_tokens, self._most_seconds = sequences, tokens, seconds
        self.sequences = 0
        self.tokens = 0
        self.seconds = 0.0
        self.refused = 0
        self.closed: str | None = "the model is loading"

    def enter(self) -> Ticket:
        """Accept a request; raises Closed, or Busy if not one more sequence fits."""
        if self.closed is not None:
            raise Closed(f"{self.closed}: try again later or elsewhere")
        ticket = Ticket(self)
        ticket.hold(1, 0)
        return ticket

    def take(self, sequences: int, tokens: int, seconds: float = 0.0) -> None:
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
        longest, lasts = self._most_seconds, self.seconds + seconds
        if seconds > 0 and longest is not None and self.seconds and lasts > longest:
            self.refused += 1
            raise Busy(
                f"the server holds {self.seconds:.0f} of {longest:g} seconds of sound and this "
                f"request has {seconds:.0f}: try again later"
            )
        self.sequences, self.tokens, self.seconds = more, more_tokens, lasts


class Ticket:
    """What one HTTP request holds of the gate, until `leave`."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._sequences = 0
        self._tokens = 0
        self._seconds = 0.0

    def hold(self, sequences: int, tokens: int, seconds: float | None = None) -> None:
        """Hold so much from now on, instead of what was held; None holds as much sound as before.

        Raises:
            Busy: it does not fit now.
            InvalidOption: it never fits.
        """
        if sequences > self._gate.most:
            raise InvalidOption(
                f"n: the request asks for more answers than this server takes at a time: ask for "
                f"{self._gate.most} or fewer"
            )
        seconds = self._seconds if seconds is None else seconds
        more = sequences - self._sequences, tokens - self._tokens, seconds - self._seconds
        self._gate.take(*more)
        self._sequences, self._tokens, self._seconds = sequences, tokens, seconds

    def leave(self) -> None:
        self.hold(0, 0, 0.0)
