"""Problems with a dropped carry: a right and a wrong response alike but for it, and siblings.

Gives  sums (tiny policies), products (models of language): Told.

A sum of three numbers is written first pair first or last pair first (an order that the tiny
policies were never taught), a product of two numbers split one way or the other.
"""

from typing import NamedTuple

import numpy as np

from tokensense.models import tiny
from tokensense.tasks.arithmetic import NUMBERS


class Written(NamedTuple):
    """A response, right and with the error; alike up to the first digit that differs."""

    right: str
    wrong: str


class Told(NamedTuple):
    """A problem with its texts.

    question: of it. own: the responses that are scored. siblings: "same" and "other" route.
    """

    question: str
    own: Written
    siblings: dict[str, Written]


def without_carry(product: int, units: int) -> int:
    """What a product (or sum) comes to when the carry of its units is dropped."""
    return product - 10 * (units // 10)


def sums(rng: np.random.Generator) -> Told:
    """`a + b + c` with a carry in a + b and in b + c; routes begin with one or the other."""
    while True:
        a, b, c = (int(n) for n in rng.integers(11, 20, size=3))
        if min(a % 10 + b % 10, b % 10 + c % 10) >= 10:
            break

    def text(first: tuple[int, int], last: int, words: str) -> Written:
        begin, then, equals, end = words.split()
        x, y = first
        found = []
        for total in (x + y, without_carry(x + y, x % 10 + y % 10)):
            digits = (" ".join(NUMBERS[n]) for n in (x, y, total, total, last, total + last))
            m, n, s, again, k, t = digits
            found.append(f"{begin} {m} + {n} {equals} {s} ; {then} {again} + {k} {equals} {t} ;")
            found[-1] += f" {end} {t} {tiny.END}"
        return Written(*found)

    question = " + ".join(" ".join(NUMBERS[n]) for n in (a, b, c))
    return Told(
        question,
        text((a, b), c, "first then gives answer"),
        {
            "same": text((a, b), c, "begin next is result"),
            "other": text((b, c), a, "begin next is result"),
        },
    )


def products(rng: np.random.Generator) -> Told:
    """`a × b` with a carry in a times the units of b, and in b times the units of a."""
    while True:
        a, b = (int(n) for n in rng.integers(12, 100, size=2))
        if a % 10 * (b % 10) >= 10 and min(a % 10, b % 10) > 1 and a != b:
            return product(a, b)


def product(a: int, b: int) -> Told:
    """Texts of one product; both routes have the same two products of units."""

    def text(whole: int, split: int, form: str) -> Written:
        tens, units = split // 10 * 10, split % 10
        found = []
        for part in (whole * units, without_carry(whole * units, whole % 10 * units)):
            found.append(
                form.format(w=whole, t=tens, u=units, x=whole * tens, y=part, z=whole * tens + part)
            )
        return Written(*found)

    first = "{w} × {t} = {x}. {w} × {u} = {y}. {x} + {y} = {z}. The answer is {z}."
    second = "We have {w} × {t} = {x}, and {w} × {u} = {y}. So {x} + {y} = {z}."
    return Told(
        f"What is {a} × {b}?",
        text(a, b, first),
        {"same": text(a, b, second), "other": text(b, a, second)},
    )
