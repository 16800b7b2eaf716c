r"""Is this answer that answer? What runs inside a worker process, and nowhere else.

Reads  two short texts, the reference answer and the answer found in a response, one JSON object a
       line on standard input.
Gives  one JSON object a line: status `right`, `wrong` or `undecided`, and the reason.

Everything here may hang, fill the memory or crash: sympy evaluates what a model wrote. So the
kernel, not Python, enforces the limits: an address-space limit, and timers of processor and wall
time whose signals end the process even inside one long C call. Three questions are asked in turn:
the same text? two plain numbers (compared as exact fractions)? equal to math-verify? Its answer
is then checked by value to 50 digits, because it compares numbers after chopping at 15 digits
(1/2^99 "equals" 1/2^98: Math-Verify#14) and turns errors inside sympy into a plain False.

Decimals are compared as math-verify does, after rounding to six places, with a relative error of at
most 1e-4 besides, so that 0.0000001 is not 0.0000002. `50\%` equals both 50 and 0.5.

Source: huggingface/Math-Verify 0.9 (gold first: its comparison is not symmetric).
"""

import json
import logging
import os
import re
import resource
import signal
import sys
from fractions import Fraction
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import sympy
from math_verify import LatexExtractionConfig, parse, verify
from math_verify.grader import get_pct_val, sort_key
from sympy.matrices import MatrixBase

from tokensense.tasks.extraction import SENTENCE_END, outer_markup_removed, plain_number

Status = Literal["right", "wrong", "undecided"]
Relation = Literal["equal", "different", "unknown", "no values"]

EXPRESSIONS = (sympy.Basic, MatrixBase)
DIGITS = 50
EXACT = Fraction(1, 10**40)
DECIMAL_EQUAL = Fraction(1, 10**12)
DECIMAL_CLOSE = Fraction(1, 10**4)
DECIMAL_PLACES = 6
# Any values will do where two expressions are unequal; these make accidents unlikely.
POINTS = ((2, 7), (5, 3), (11, 13), (17, 19), (29, 23), (31, 37), (43, 41), (47, 53))

FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
QUANTITY = re.compile(
    r"(?:[$€£¥]|\\\$)?\s*(?P<number>[-−–+]?[\d.,/ ]*\d)\s*"
    r"(?P<percent>\\?%|percent\b)?"
    r"(?:\s+[a-zA-Z]{3,}[a-zA-Z ./'’-]*"
    r"|\s*(?:[ckm]m|[km]g|m[lL]|ft|in|yd|lbs?|oz|hrs?|[ap]m|[AP]M))?"
)
NUMBERS = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:\s*/\s*\d+)?(?:\s*\\?%)?")
SCIENTIFIC = re.compile(r"(-?\d+(?:\.\d+)?)[eE]([-+]?\d{1,6})")
NOT_UNITS = re.compile(
    r"\b(?:hundred|thousand|million|billion|trillion|dozen|half|halves|third|or|to|times|plus|minus"
    r"|over|mod|pi|sqrt|sin|cos|tan|log|ln|exp|not|and)\b",
    re.IGNORECASE,
)
SPACED_NUMBER = re.compile(r"[-−–]?\d{1,3}(?: \d{3})+")
TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
WORDS = re.compile(r"[^\W\d_]+(?:[ '’.-]+[^\W\d_]+)*")
FUNCTIONS = {"sin", "cos", "tan", "log", "exp", "sqrt", "arcsin", "arccos", "arctan", "cot", "sec"}


def judge(answer: str, reference: str) -> tuple[Status, str]:
    r"""Compare an answer with the reference. May hang or die: call it in a worker only.

    Args:
        answer: what the response gave, without its box.
        reference: the known answer; LaTeX, a plain number, or words.

    Returns:
        Status and reason. `undecided` where either cannot be read, and where neither equality nor a
        difference can be shown.

    >>> judge("1,234 dollars", "1234")
    ('right', 'same number')
    >>> judge(r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}")
    ('wrong', 'equal after rounding only')
    """
    gold, given = tidy(reference), tidy(answer)
    plain = compared_plain(gold, given)
    if plain is not None:
        return plain
    try:
        return compared(read(gold), read(given))
    except MemoryError:
        raise
    except RecursionError:
        return "undecided", "nested too deeply"
    except Exception as error:
        return "undecided", f"comparison failed: {type(error).__name__}"


def compared_plain(gold: str, given: str) -> tuple[Status, str] | None:
    """Verdict on equal texts, plain numbers and words; None where it takes algebra."""
    if gold == given:
        return "right", "same text"
    left, right = quantity(gold), quantity(given)
    if left is not None and right is not None:
        same = same_number(left, right, decimal="." in gold + given)
        return ("right", "same number") if same else ("wrong", "another number")
    if is_formula(gold) and is_formula(given):
        return None
    if WORDS.fullmatch(gold) and WORDS.fullmatch(given):
        return compared_words(gold, given)
    return "undecided", "reference in words" if is_formula(given) else "answer in words"


def judge_line(line: str, reference: str) -> tuple[Status, str]:
    r"""Compare the one number or formula of the last sentence of a line; see `judge`.

    Two different numbers, none of them marked as the answer, are undecided: taking the rightmost
    would call "36 miles in 6 hours" wrong.

    >>> judge_line("That makes 5 * 4. So she has 20 eggs.", "20.0")
    ('right', 'same number')
    >>> judge_line("So he walks 36 miles in 6 hours.", "36")
    ('undecided', 'several numbers, none marked as the answer')
    """
    sentence = SENTENCE_END.split(line)[-1]
    formulas = list(FORMULA.finditer(sentence))
    tokens = NUMBERS.findall(FORMULA.sub(" ", sentence))
    if not formulas and not tokens:
        return "undecided", "no answer found"
    if len(formulas) > 1 or (formulas and tokens):
        return "undecided", "several formulas or numbers, none marked as the answer"
    if formulas:
        return judge(formulas[0][0], reference)
    if len({quantity(token.strip()) for token in tokens}) > 1:
        return "undecided", "several numbers, none marked as the answer"
    return judge(tokens[-1], reference)


def tidy(text: str) -> str:
    r"""The text as math-verify reads it best: no outer mark-up, `\pi` for pi, one kind of minus.

    >>> tidy("**2pi/3**."), tidy(r"\text{18}"), tidy("3 1/2")
    ('2\\pi/3', '18', '3\\frac{1}{2}')
    """
    text = outer_markup_removed(text).replace("−", "-").replace("–", "-").replace("\u00a0", " ")
    wrapped = TEXT_COMMAND.fullmatch(text)
    text = outer_markup_removed(wrapped[1]) if wrapped else text
    formulas = list(FORMULA.finditer(text))
    if len(formulas) == 1 and not re.search(r"\d", FORMULA.sub("", text)):
        text = next(group for group in formulas[0].groups() if group).strip()
    text = re.sub(r"(\d)(?:\\[,! ]|\{,\}|,\\!)(?=\d{3}(?!\d))", r"\1,", text)
    if SPACED_NUMBER.fullmatch(text):
        text = text.replace(" ", "")
    text = re.sub(r"^(-?\d+) +(\d+)/(\d+)$", r"\1\\frac{\2}{\3}", text)
    text = re.sub(r"(?<![a-zA-Z\\])pi(?![a-zA-Z])", r"\\pi", text).replace("π", r"\pi")
    text = re.sub(r"√(\d+)", r"\\sqrt{\1}", text)
    text = re.sub(r"(?<![a-zA-Z\\])sqrt\(([^()]*)\)", r"\\sqrt{\1}", text)
    text = re.sub(r"\\(?:mathrm|text)\{([ei])\}", r"\1", text)
    return SCIENTIFIC.sub(r"\1\\times 10^{\2}", text) if SCIENTIFIC.fullmatch(text) else text


def quantity(text: str) -> tuple[Fraction, bool] | None:
    r"""Exact value of a number with an optional currency sign, percent sign or unit in words.

    Returns:
        The number and whether a percent sign follows; None for any other text.

    >>> quantity("$1,200 per day"), quantity(r"50\%"), quantity("2 million")
    ((Fraction(1200, 1), False), (Fraction(50, 1), True), None)
    """
    value = plain_number(text)
    if value is not None:
        return value, False
    match = QUANTITY.fullmatch(text)
    if match is None or NOT_UNITS.search(text):
        return None
    value = plain_number(match["number"])
    return None if value is None else (value, match["percent"] is not None)


def same_number(
    gold: tuple[Fraction, bool], given: tuple[Fraction, bool], *, decimal: bool
) -> bool:
    """Equality of two quantities; `decimal` allows for rounding, see the module's header."""
    (left, left_percent), (right, right_percent) = gold, given
    pairs = [(left, right)]
    if left_percent != right_percent:
        pairs.append((left / 100, right) if left_percent else (left, right / 100))
    if any(a == b for a, b in pairs):
        return True
    return decimal and any(
        round(a, DECIMAL_PLACES) == round(b, DECIMAL_PLACES)
        and abs(a - b) <= DECIMAL_CLOSE * max(abs(a), abs(b))
        for a, b in pairs
    )


def compared_words(gold: str, given: str) -> tuple[Status, str]:
    """Compare two texts of words only; math-verify would take letters for variables."""
    left, right = (" ".join(text.casefold().strip("().").split()) for text in (gold, given))
    if left == right:
        return "right", "same words"
    # `none` and `no solution` mean the same; one word against one word is safe to tell apart.
    if " " in left or " " in right:
        return "undecided", "other words, perhaps of the same meaning"
    return "wrong", "another word"


def is_formula(text: str) -> bool:
    """False for prose: a word of three or more letters outside LaTeX that names no function."""
    bare = TEXT_COMMAND.sub(" ", text)
    words = re.findall(r"(?<![a-zA-Z\\{])[a-zA-Z]{3,}(?![a-zA-Z}])", bare)
    return all(word in FUNCTIONS for word in words)


def read(text: str) -> sympy.Basic | MatrixBase | None:
    """Sympy's reading of a text; None where math-verify cannot parse it."""
    if text.count("{") != text.count("}"):
        return None
    found = parse(f"\\boxed{{{text}}}", [LatexExtractionConfig()], parsing_timeout=None)
    return found[0] if found and isinstance(found[0], EXPRESSIONS) else None


def compared(
    gold: sympy.Basic | MatrixBase | None, given: sympy.Basic | MatrixBase | None
) -> tuple[Status, str]:
    """Verdict of math-verify, checked by value; see the module's header."""
    if gold is None or given is None:
        return "undecided", "reference not parsed" if gold is None else "answer not parsed"
    equal = verify(
        gold, given, timeout_seconds=None, raise_on_error=True, allow_set_relation_comp=True
    )
    relations = {relation(a, b, close=equal) for a, b in scalar_pairs(gold, given)}
    if equal:
        rounded = "different" in relations
        return ("wrong", "equal after rounding only") if rounded else ("right", "equal")
    if "different" in relations:
        return "wrong", "another value"
    if relations and not isinstance(gold, sympy.Interval):
        return "undecided", "neither equality nor a difference could be shown"
    return "wrong", "not equal"


def scalar_pairs(
    gold: sympy.Basic | MatrixBase, given: sympy.Basic | MatrixBase
) -> list[tuple[sympy.Expr, sympy.Expr]]:
    """Numbers or formulas that must agree if the two do; empty where there is nothing to pair."""
    if isinstance(given, sympy.Eq) and not isinstance(gold, sympy.Eq):
        given = given.rhs
    elif isinstance(gold, sympy.Eq) and not isinstance(given, sympy.Eq):
        gold = gold.rhs
    elif isinstance(gold, sympy.Eq) and isinstance(given, sympy.Eq) and gold.lhs == given.lhs:
        gold, given = gold.rhs, given.rhs
    if isinstance(gold, sympy.Expr) and isinstance(given, sympy.Expr):
        return [(gold, given)]
    if type(gold) is not type(given):
        return []
    if isinstance(gold, MatrixBase):
        parts = zip_longest(gold.flat(), given.flat())
    elif isinstance(gold, sympy.FiniteSet):
        parts = zip_longest(sorted(gold.args, key=sort_key), sorted(given.args, key=sort_key))
    elif isinstance(gold, sympy.Tuple | sympy.Interval):
        parts = zip_longest(gold.args[:2] if isinstance(gold, sympy.Interval) else gold, given.args)
    else:
        return []
    return [(a, b) for a, b in parts if isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr)]


def relation(gold: sympy.Expr, given: sympy.Expr, *, close: bool) -> Relation:
    """What the values of two formulas, at fixed values of their variables, say about equality.

    Args:
        gold: one formula.
        given: another.
        close: decimals count as equal within the rounding that math-verify allows.
    """
    if isinstance(gold, sympy.Symbol) or isinstance(given, sympy.Symbol):
        # math-verify compares names: `abc` is a*b*c, and `e` is e.
        return "no values" if close else ("different" if gold != given else "equal")
    left, right = get_pct_val(gold), get_pct_val(given)
    if (left is None) == (right is None):
        return relation_of_values(gold, given, close=close)
    bare = (gold, right) if left is None else (left, given)
    scaled = (gold, right / 100) if left is None else (left / 100, given)
    found = {relation_of_values(*pair, close=close) for pair in (bare, scaled)}
    ranked: tuple[Relation, ...] = ("equal", "unknown", "different")
    return next(answer for answer in ranked if answer in found)


def relation_of_values(gold: sympy.Expr, given: sympy.Expr, *, close: bool) -> Relation:
    """See `relation`; percent signs are gone."""
    names = sorted(gold.free_symbols | given.free_symbols, key=str)
    if len(names) > len(POINTS):
        return "unknown"
    point = {name: sympy.Rational(*POINTS[place]) for place, name in enumerate(names)}
    left, right = value_at(gold, point), value_at(given, point)
    if left is None or right is None:
        return "unknown"
    if (left.is_Rational and right.is_Rational) or left.is_infinite or right.is_infinite:
        return "equal" if left == right else "different"
    tolerance = EXACT
    if gold.has(sympy.Float) or given.has(sympy.Float):
        tolerance = DECIMAL_CLOSE if close else DECIMAL_EQUAL
    near = abs(left - right) <= sympy.Rational(tolerance) * max(abs(left), abs(right))
    return "equal" if near else "different"


def value_at(expression: sympy.Expr, point: dict[sympy.Basic, sympy.Rational]) -> sympy.Expr | None:
    """Value, exact or to 50 digits; None where it is no number, or not known that well."""
    value = expression.subs(point).doit()
    if value.is_Rational or value in (sympy.oo, -sympy.oo):
        return value
    value = value.evalf(DIGITS)
    parts = value.as_real_imag()
    # Precision 1 is sympy's mark for digits that are noise.
    sure = all(part.is_Rational or (part.is_Float and part._prec > 1) for part in parts)
    return value if sure else None


def address_space() -> int:
    """Bytes of address space of this process; 0 where the system does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else 0


def serve(memory_bytes: int, processor_seconds: float, wall_seconds: float) -> None:
    """Answer requests until standard input ends; the caller starts this in a process of its own.

    Args:
        memory_bytes: address space allowed beyond what the idle worker has.
        processor_seconds: per request; SIGPROF then ends the process.
        wall_seconds: per request; SIGALRM then ends the process, even if nobody waits any more.
    """
    logging.disable(logging.CRITICAL)  # math-verify warns once a process that it has no time limit
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a stray print must not look like a reply
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Parser tables load with the first parse. Under the limit a failure there would be swallowed.
    compared(read(r"\frac{1}{3}"), read(r"\sqrt{3}"))
    limit = memory_bytes + address_space()
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    replies.write(b'{"ready": true}\n')
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, processor_seconds)
        signal.setitimer(signal.ITIMER_REAL, wall_seconds)
        request = json.loads(line.decode("utf-8", "surrogatepass"))
        look = judge_line if request["rule"] == "last line" else judge
        try:
            status, reason = look(request["answer"], request["reference"])
        except MemoryError:
            status, reason = "undecided", "memory"
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        replies.write(json.dumps({"status": status, "reason": reason}).encode() + b"\n")
