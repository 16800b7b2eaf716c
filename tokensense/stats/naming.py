"""The word for what verdicts do: thresholds, and the decision from a few measured quantities.

Reads  readings of QUANTITIES: estimates with intervals, made by `character` from a store.
Gives  Thresholds, decide -> Character (word, statement).
Sign   log ratio above 0: verdicts do more than irrelevant words do; AUROC above .5: responses that
       "right" pulls up against "wrong" are right more often.

What the words say of any policy, a large one too:
truthful   verdicts tell the outcome, and push the text no further than irrelevant words do.
style      verdicts change how the text is worded: both push the same tokens the same way, far
           beyond irrelevant words, and part no more than these do. They tell nothing.
mixed      both: a large joint push, and a contrast that knows right from wrong.
placebo    a verdict does no more than a day of the week in its place.
shuffled   the contrast is read and knows nothing of the labels at hand: they do not belong to these
           traces, or what the verdict says is not about them.
random     the policy does not know such texts: the context hardly helps it to tell the next token.

Decision, in this order, by the point estimates:
1  context_gain low -> random.
2  contrast_ratio low -> style where push_ratio is high, else placebo.
3  auroc telling -> mixed where push_ratio is high, else truthful.
4  auroc at chance -> shuffled.
`not_estimable`, with the reason, is said of a quantity that is needed and has no interval (no
placebo, no labels, few problems), of a wide interval that reaches across its threshold, of an AUROC
that is turned around, and of one between chance and telling. An AUROC alone is not enough to say
that a contrast is read: the two words of a placebo, 14 times weaker, were seen at .95 in a truthful
policy.

Source   the order of questions follows `statistics.md` 3.13 of the project's method notes. The
         thresholds are ours, fixed on tiny policies with planted tags before those of the blind
         study (`studies/blind_naming.py`) were trained.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

WORDS = ("truthful", "style", "mixed", "placebo", "shuffled", "random")
NOT_ESTIMABLE = "not_estimable"
MEANINGS: dict[str, str] = {
    "truthful": "verdicts tell the outcome, and change nothing else beyond what irrelevant words "
    "change",
    "style": "verdicts change the wording and tell nothing of the outcome",
    "mixed": "verdicts change the wording, and tell the outcome as well",
    "placebo": "verdicts do no more than irrelevant words",
    "shuffled": "the two verdicts are told apart, but not along the labels: these do not belong to "
    "the traces, or are not what the verdicts speak of",
    "random": "the policy does not know such texts: context hardly helps it",
}
QUANTITIES: dict[str, str] = {
    "context_gain": "1 - mean surprisal / entropy of the store's token frequencies",
    "push_ratio": "log of the mean joint push, verdict against placebo families",
    "contrast_ratio": "log of mean |d| beside m, verdict against placebo families",
    "auroc": "within-problem AUROC of the summed contrast for right",
}


@dataclass(frozen=True)
class Thresholds:
    """The numbers that decide. They do not adapt to anything.

    Attributes:
        context_gain: below, the policy does not know such texts.
        push_ratio: from here on, verdicts push further than irrelevant words.
        contrast_ratio: from here on, verdicts part further than irrelevant words.
        auroc: from here on, with its interval above 1/2, the contrast tells the outcome; below
            one minus this, it is turned around.
        weak_auroc: an AUROC below `auroc` whose interval lies above this is neither chance nor
            telling.
        widest_gain: half the widest interval of the gain that may reach across its threshold.
        widest_ratio: of both ratios.
        widest_auroc: of the AUROC.
    """

    context_gain: float = 0.4
    push_ratio: float = 0.7
    contrast_ratio: float = 0.8
    auroc: float = 0.6
    weak_auroc: float = 0.53
    widest_gain: float = 0.1
    widest_ratio: float = 0.6
    widest_auroc: float = 0.13

    def widest(self, quantity: str) -> float:
        """Half the widest interval that may reach across the threshold of a quantity."""
        return float(getattr(self, f"widest_{quantity.rpartition('_')[2]}"))

    @property
    def digest(self) -> str:
        """The first 16 hex digits of the sha256 over names and numbers."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


THRESHOLDS = Thresholds()


class Reading(NamedTuple):
    """One quantity as it was measured.

    Attributes:
        estimate: NaN where there is none.
        low: lower limit, NaN where there is no interval.
        high: upper limit.
        why: how the interval was made, or why there is none.
    """

    estimate: float
    low: float
    high: float
    why: str

    def lack(self, threshold: float, *, widest: float) -> str:
        """Why nothing can be told by it; empty where something can.

        Args:
            threshold: that the estimate is compared with.
            widest: half the widest interval that may reach across the threshold.
        """
        if not np.isfinite([self.estimate, self.low, self.high]).all():
            return self.why
        if (self.high - self.low) / 2 > widest and self.low < threshold <= self.high:
            return f"{self.shown} is wider than +-{widest} and reaches across {threshold}"
        return ""

    @property
    def shown(self) -> str:
        """Estimate and interval as text."""
        return f"{self.estimate:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Character(NamedTuple):
    """What is said of a store.

    Attributes:
        word: one of WORDS, or NOT_ESTIMABLE.
        statement: the reason, with the numbers.
    """

    word: str
    statement: str


def decide(readings: Mapping[str, Reading], at: Thresholds = THRESHOLDS) -> Character:
    """Put the quantities into a word.

    Args:
        readings: one for each of QUANTITIES.
        at: the numbers that decide.
    """
    gain, push, parting, telling = (readings[name] for name in QUANTITIES)
    known = gain.estimate >= at.context_gain
    read = parting.estimate >= at.contrast_ratio
    needed = list(QUANTITIES)[: 4 if known and read else 3 if known else 1]
    for name in needed:
        lack = readings[name].lack(getattr(at, name), widest=at.widest(name))
        if lack:
            return Character(NOT_ESTIMABLE, f"not estimable: {name}: {lack}")
    shown = ", ".join(f"{name} {readings[name].shown}" for name in needed)
    pushed = push.estimate >= at.push_ratio
    if not known:
        word = "random"
    elif not read:
        word = "style" if pushed else "placebo"
    elif telling.low > 0.5 and telling.estimate >= at.auroc:
        word = "mixed" if pushed else "truthful"
    elif telling.estimate <= 1 - at.auroc or telling.low > at.weak_auroc:
        why = "is turned around" if telling.estimate < 0.5 else "tells too little to name it"
        return Character(NOT_ESTIMABLE, f"not estimable: the contrast {why}: {shown}")
    else:
        word = "shuffled"
    return Character(word, f"{MEANINGS[word]}: {shown}")
