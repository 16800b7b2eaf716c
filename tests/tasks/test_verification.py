import json
import subprocess
import sys

import pytest

pytest.importorskip("math_verify", reason="needs the extra `math`")

from tokensense.tasks import verification
from tokensense.tasks.extraction import plain_number
from tokensense.tasks.verification import judge, judge_line, quantity, same_number, tidy

RIGHT = [
    ("18", "18"),
    ("1,234", "1234"),
    (r"1\,234", "1234"),
    ("1 234", "1234"),
    ("$18.00", "18"),
    (r"\$32.50", "32.5"),
    ("18 dollars per day", "18"),
    ("5cm", "5 cm"),
    (r"5\text{ cm}", "5"),
    ("90 degrees", "90"),
    (r"75^\circ", "75"),
    (r"\text{10 apples}", "10"),
    (r"50\%", "50"),
    (r"50\%", "0.5"),
    (r"\frac12", r"50\%"),
    ("0.333333", "1/3"),
    (r"\frac{7}{2}", "3 1/2"),
    (r"\frac{23}{2}", r"11\frac{1}{2}"),
    (r"\frac{1}{-3}", r"\frac{-1}{3}"),
    ("pi/2", r"\frac{\pi}{2}"),
    ("2pi", r"2\pi"),
    ("sqrt(2)", r"\sqrt{2}"),
    ("√2", r"\sqrt{2}"),
    ("3.141593", r"\pi"),
    (r"1+\sqrt{2}", r"\sqrt{3+2\sqrt{2}}"),
    (r"\sin^2(1)+\cos^2(1)-1", "0"),
    ("1e5", "100000"),
    ("300000", r"3\times 10^5"),
    (r"\frac{1}{2^{99}}", "1/2^{99}"),
    ("(x+1)^2", "x^2+2x+1"),
    ("5", "x=5"),
    ("x=5", "5"),
    ("2x-y+3=0", "y=2x+3"),
    ("5>x", "x<5"),
    (r"1\le x\le 2", "[1,2]"),
    ("3,2", "2,3"),
    (r"6\text{ or }7", "6,7"),
    ("Monday", r"\text{Monday}"),
    (r"\text{(A)}", "A"),
    ("2i+1", "1+2i"),
]
WRONG = [
    ("19", "18"),
    ("1234", "1,235"),
    ("1, 234", "1,234"),
    ("0.33", "1/3"),
    ("0.0000002", "0.0000001"),
    ("10^{-30}", "0"),
    (r"0.5\%", r"50\%"),
    (r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}"),
    (r"\frac{1}{2006!}", r"\frac{1}{2004!}"),
    ("x=1/2^{98}", "x=1/2^{99}"),
    (r"\{1, \frac{1}{2^{98}}\}", r"\{1, \frac{1}{2^{99}}\}"),
    (r"\frac{1}{3 \cdot 2^{2006}}", r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}"),
    (r"\pi+10^{-20}", r"\pi"),
    ("3.14", r"\pi"),
    ("100!+1", "100!"),
    ("(x+2)^2", "x^2+2x+1"),
    ("q - p", "p - q"),
    ("18ab", "18xy"),
    ("6 + x", "6"),
    ("[3,4]", "(3,4)"),
    ("2021", r"\pm 2021"),
    (r"-\infty", r"\infty"),
    ("silent", "listen"),
    ("B", "A"),
    (r"\begin{pmatrix}1\\3\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
]
UNDECIDED = [
    ("eighteen", "18", "answer in words"),
    ("2 million", "2000000", "answer in words"),
    ("18 because 3*6", "18", "answer in words"),
    ("not 5", "5", "answer in words"),
    (r"\mathbb{R}", r"\text{all real numbers}", "reference in words"),
    ("no solution", "none", "other words, perhaps of the same meaning"),
    (r"1\frac{", "14", "answer not parsed"),
    ("14", r"\frac{1}{", "reference not parsed"),
    ("1:00", "12:00", "comparison failed: ValueError"),
]


@pytest.mark.parametrize(("answer", "reference"), RIGHT)
def test_right(answer, reference):
    assert judge(answer, reference)[0] == "right"


@pytest.mark.parametrize(("answer", "reference"), WRONG)
def test_wrong(answer, reference):
    assert judge(answer, reference)[0] == "wrong"


@pytest.mark.parametrize(("answer", "reference", "reason"), UNDECIDED)
def test_what_cannot_be_read_or_shown_is_undecided(answer, reference, reason):
    assert judge(answer, reference) == ("undecided", reason)


@pytest.mark.parametrize(
    ("line", "reference", "status"),
    [
        ("So she has 18 eggs.", "18", "right"),
        ("That is 5 * 4. So she has 20 eggs.", "20", "right"),
        ("Therefore she pays \\(\\$60\\).", "60", "right"),
        ("Therefore, **4 liters** of water.", "5", "wrong"),
        ("So he walks 36 miles in 6 hours.", "36", "undecided"),
        ("5 * 3 = 15", "15", "undecided"),
        ("\\(x = 5\\) when \\(y = 3\\)", "5", "undecided"),
        ("\\(x = 5\\) when 3", "5", "undecided"),
        ("I do not know", "5", "undecided"),
    ],
)
def test_a_last_line_counts_only_with_one_number_or_formula(line, reference, status):
    assert judge_line(line, reference)[0] == status


def test_nesting_is_undecided_and_memory_is_for_the_worker_to_report(monkeypatch):
    def raising(error):
        def verify(*args, **kwargs):
            raise error

        monkeypatch.setattr(verification, "verify", verify)

    raising(RecursionError())
    assert judge("x", "y") == ("undecided", "nested too deeply")
    raising(MemoryError())
    with pytest.raises(MemoryError):
        judge("x", "y")


@pytest.mark.parametrize(
    ("answer", "reference"),
    [("f(x)", "g(x)"), ("abcdefghi", "x"), (r"rac{50\%}{x}", "y")],
)
def test_what_has_no_value_is_never_right(answer, reference):
    assert judge(answer, reference)[0] != "right"


def test_equal_values_that_algebra_does_not_see_are_undecided(monkeypatch):
    monkeypatch.setattr(verification, "verify", lambda *args, **kwargs: False)
    shown = "neither equality nor a difference could be shown"
    assert judge("(x+1)^2", "x^2+2x+1") == ("undecided", shown)
    assert judge(r"\{2, 1\}", r"\{1, 2\}") == ("undecided", shown)
    assert judge(r"50\%", r"\frac12") == ("undecided", shown)
    assert judge("(1, 2)", "[1, 2]") == ("wrong", "not equal")


def test_decimals_need_six_places_and_a_relative_error_of_at_most_1e_4():
    def close(left, right):
        pair = [(plain_number(text), False) for text in (left, right)]
        return same_number(*pair, decimal=True)

    assert close("0.3333333", "0.3333334")
    assert not close("0.333", "0.334")
    assert not close("0.0000001", "0.0000002")  # equal to six places, not relatively
    assert close("123456.7890001", "123456.7890002")


def test_a_quantity_has_one_number_and_words_that_scale_nothing():
    assert quantity("€1,200 a year") is None  # `a` alone could be a variable
    assert quantity("€1,200 per year") == (1200, False)
    assert quantity("12 percent") == (12, True)
    assert quantity("3 dozen") is None
    assert quantity("18 x") is None


def test_tidying_keeps_what_it_does_not_know():
    for text in ("x^2", r"\frac{1}{2}", "(1, 2)", "piece", "1,2"):
        assert tidy(text) == text


def test_the_worker_speaks_json_and_nothing_else():
    requests = [
        {"rule": "boxed", "answer": "\ud835", "reference": "1"},
        {"rule": "boxed", "answer": "1/2", "reference": "0.5"},
    ]
    lines = b"".join(
        json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        for request in requests
    )
    code = "from tokensense.tasks.verification import serve; serve(2**30, 5.0, 100.0)"
    done = subprocess.run(
        [sys.executable, "-c", code], input=lines, capture_output=True, check=True
    )
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert replies[0] == {"ready": True}
    assert [reply["status"] for reply in replies[1:]] == ["undecided", "right"]
    assert done.stderr == b""


def test_the_worker_loads_no_array_library():
    code = "import sys, tokensense.tasks.verification; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "False\n"
