"""Ranges of numbers as patterns, exact at any size: integers by digits, decimals by digits too."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from math import ceil, floor
from typing import NamedTuple

from paceline.models.patterns import blocks

# The largest float64. Beyond it readers of JSON see infinity.
_LARGEST = Decimal("1.7976931348623157e308")
_SMALLEST = Decimal("3e-324")  # below it they see zero
_LONG = 40  # digits on a side of the point, beyond which scientific notation alone is compared
_MANY = 1100  # numbers that are written out
_FREE = r"(?:\.[0-9]+)?"


class Bound(NamedTuple):
    """A limit of a range, which belongs to it unless it is `strict`."""

    value: Decimal
    strict: bool = False


def integer(low: Bound | None, high: Bound | None, step: int = 1) -> str | None:
    """Return a Lark expression of the multiples of `step` in a range.

    None if there is none. NotImplementedError if the range holds more of them than can be said.
    """
    first = None if low is None else ceil(low.value)
    last = None if high is None else floor(high.value)
    if low is not None and low.strict and first == low.value:
        first = floor(low.value) + 1
    if high is not None and high.strict and last == high.value:
        last = ceil(high.value) - 1
    if first is not None and last is not None:
        if -(-first // step) > last // step:
            return None
        if step > 1 and last // step - -(-first // step) < _MANY:
            return "/" + "|".join(map(str, range(-(-first // step) * step, last + 1, step))) + "/"
    made = f"/{_integers(first, last)}/"
    return made if step == 1 else f"({made} & {_multiples(step)})"


def decimal(low: Bound | None, high: Bound | None, places: int | None = None) -> str | None:
    """Return a Lark expression of the numbers in a range; None if there is none.

    With `places` it is numbers of at most so many digits behind the point. In a range an exponent
    follows one digit, as programs write it.
    """
    if low is not None and high is not None:
        gap = high.value - low.value
        if gap < 0 or (not gap and (low.strict or high.strict)):
            return None
    parts = []
    if places is not None:
        fraction = rf"(?:\.[0-9]{{1,{places}}}0*)?" if places else r"(?:\.0+)?"
        parts.append(f"/-?(?:0|[1-9][0-9]*){fraction}/")
    if low is None and high is None:
        return parts[0] if parts else rf"/-?(?:(?:0|[1-9][0-9]*){_FREE}(?:[eE]{_exponent()})?)/"
    if low is not None:
        parts.append(f"/{_from(low, '', '-')}/")
    if high is not None:
        parts.append(f"/{_from(Bound(high.value.copy_negate(), high.strict), '-', '')}/")
    return f"({' & '.join(parts)})"


def _from(low: Bound, sign: str, other: str) -> str:
    # Numbers from a bound on, where `sign` is that of the large ones.
    if low.value > 0 or (not low.value and low.strict):
        return f"{sign}(?:{_least(low)})"
    some = rf"(?:0|[1-9][0-9]*){_FREE}|{_scientific(None, Bound(_LARGEST))}"
    return f"{sign}(?:{some})|{other}(?:{_most(Bound(low.value.copy_negate(), low.strict))})"


def _integers(first: int | None, last: int | None) -> str:
    parts: list[str] = []
    if first is None or first < 0:
        high = None if first is None else -first
        low = 1 if last is None or last >= 0 else -last
        parts.append(f"-(?:{_natural(low, high)})")
    if last is None or last >= 0:
        parts.append(_natural(max(0, first or 0), last))
    return "|".join(parts)


def _natural(low: int, high: int | None) -> str:
    # Of the numbers from low >= 0 on.
    parts: list[str] = []
    width = len(str(low))
    top = len(str(high)) if high is not None else width
    for size in range(width, top + 1):
        a = max(low, 10 ** (size - 1) if size > 1 else 0)
        b = 10**size - 1 if high is None else min(high, 10**size - 1)
        parts += blocks([*map(int, str(a))], [*map(int, str(b))], 10)
    if high is None:
        parts.append(f"[1-9][0-9]{{{width},}}")
    return "|".join(parts)


def _multiples(step: int) -> str:
    # By the last digits, where they tell: of divisors of a power of ten.
    size = next((n for n in range(1, 20) if 10**n % step == 0), 0)
    if not size or 10**size // step > _MANY:
        raise NotImplementedError
    last = [f"{each:0{size}d}" for each in range(0, 10**size, step)]
    short = [str(int(each)) for each in last]
    return f"/-?(?:{'|'.join(short)}|[1-9][0-9]*(?:{'|'.join(last)}))/"


def _exponent(low: int | None = None, high: int | None = None) -> str:
    # As programs write it: with a sign or not, of two digits at least or not.
    low, high = max(-399, -399 if low is None else low), min(307, 307 if high is None else high)
    if low > high:
        return ""
    parts = []
    if high >= 0:
        parts.append(rf"\+?0?(?:{_natural(max(low, 0), high)})")
    if low <= 0:
        parts.append(f"-0?(?:{_natural(max(0, -high), -low)})")
    return f"(?:{'|'.join(parts)})"


def _parts(value: Decimal) -> tuple[str, str, int]:
    # Digits before and behind the point, and the exponent of the first that is not 0.
    _, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    if not text:
        return "0", "", 0
    assert isinstance(exponent, int)
    point = len(text) + exponent
    whole = (text + "0" * exponent)[:point] if point > 0 else "0"
    behind = text[max(point, 0) :] if point > 0 else "0" * -point + text
    return whole, behind.rstrip("0"), point - 1


def _least(bound: Bound) -> str:
    # Numbers without a sign from a bound >= 0 on.
    whole, behind, _ = _parts(bound.value)
    parts = [_scientific(bound, Bound(_LARGEST) if bound.value < _LARGEST.scaleb(-1) else None)]
    if len(whole) <= _LONG:
        parts += [rf"(?:{_natural(int(whole) + 1, None)}){_FREE}", whole + _above(behind, bound)]
    return "|".join(part for part in parts if part)


def _most(bound: Bound) -> str | None:
    # And up to one. None if there is none.
    whole, behind, _ = _parts(bound.value)
    parts = [_scientific(None, bound) if bound.value else ""]
    if len(whole) > _LONG:
        parts.append(rf"(?:0|[1-9][0-9]{{0,{_LONG}}}){_FREE}")
    else:
        if whole != "0":
            parts.append(rf"(?:{_natural(0, int(whole) - 1)}){_FREE}")
        if behind or not bound.strict:
            parts.append(whole + _below(behind, bound))
    return "|".join(part for part in parts if part) or None


def _above(digits: str, bound: Bound) -> str:
    """Return a pattern of the fractions that are at least `digits`."""
    if not digits:
        return r"\.0{0,300}[1-9][0-9]*" if bound.strict else _FREE
    if digits.startswith("0" * _LONG):
        return rf"\.0{{0,{_LONG - 1}}}[1-9][0-9]*"
    last = "0*[1-9][0-9]*" if bound.strict else "[0-9]*"
    tail = last
    for place in range(len(digits) - 1, -1, -1):
        digit = int(digits[place])
        more = f"[{digit + 1}-9][0-9]*|" if digit < 9 else ""
        tail = f"(?:{more}{digit}{tail})"
    return rf"\.{tail}"


def _below(digits: str, bound: Bound) -> str:
    """Return a pattern of the fractions that are at most `digits`."""
    if not digits or digits.startswith("0" * _LONG):
        return r"(?:\.0+)?"
    tail = "" if bound.strict else "0*"
    for place in range(len(digits) - 1, -1, -1):
        digit = int(digits[place])
        less = f"[0-{digit - 1}][0-9]*|" if digit > 0 else ""
        exact = "" if bound.strict and place == len(digits) - 1 else f"{digit}{tail}"
        tail = f"(?:{(less + exact).rstrip('|')}){'?' if place else ''}"
    return rf"(?:\.{tail})?"


def _scientific(low: Bound | None, high: Bound | None) -> str:
    # One digit before the point, and an exponent; "" if there is none.
    parts = []
    if (low is None or low.value < _SMALLEST) and (high is None or high.value > 10 * _SMALLEST):
        low = Bound(_SMALLEST)
    bottom = None if low is None or not low.value else _parts(low.value)[2]
    top = _parts(high.value)[2] if high is not None else None
    between = _exponent(bottom if bottom is None else bottom + 1, top if top is None else top - 1)
    if between:
        parts.append(f"[1-9]{_FREE}[eE]{between}")
    for bound, edge, beside in ((low, bottom, _above), (high, top, _below)):
        if bound is not None and edge is not None and (mantissa := _mantissa(bound, beside)):
            parts.append(f"(?:{mantissa})[eE]{_edge(edge)}")
    return "|".join(parts)


def _edge(exponent: int) -> str:
    if exponent < 0:
        return f"-0?{-exponent}"
    return rf"(?:\+?0?{exponent}{'|-0?0' if not exponent else ''})"


def _mantissa(bound: Bound, beside: Callable[[str, Bound], str]) -> str:
    whole, behind, _ = _parts(bound.value)
    digits = (whole + behind).lstrip("0")
    first, rest = int(digits[0]), digits[1:].rstrip("0")
    if beside is _above:
        parts = [f"[{first + 1}-9]{_FREE}"] if first < 9 else []
        return "|".join([*parts, f"{first}{_above(rest, bound)}"])
    parts = [f"[1-{first - 1}]{_FREE}"] if first > 1 else []
    if rest or not bound.strict:
        parts.append(f"{first}{_below(rest, bound)}")
    return "|".join(parts)
