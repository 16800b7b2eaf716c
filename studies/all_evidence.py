"""Evidence for credit rules that no store holds: gradients, continuations, masks, an update.

Reads  Setting: a policy, the responses of a store as branches, what `gathering` read of it.
Gives  LEARNED, CHEAP, COSTLY: name -> function of a Setting, which gives arrays over its tokens;
       NaN where a response has none (no answer). What a policy is told: `all_told`.
Sign   as in `credit.evidence`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from tokensense.credit.delta import row_gradient
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy
from tokensense.models.scorer import evaluation, score
from tokensense.probes.ablate import Span, ablate
from tokensense.probes.gradients import inner_products, pooled_gradients
from tokensense.probes.proxies import head_view
from tokensense.probes.resample import Start, Trials, resample
from tokensense.segments import broadcast
from tokensense.tasks import arithmetic
from tokensense.tasks.arithmetic_labels import verify

ANSWER = "final_answer"
STEP = 0.02  # nats: mean change of log p by the one update behind `ratio`
NOISE, DRAWS = 1e-3, 4  # OAR-G
TRIALS = Trials(max_new_tokens=96, first=8, most=8)


@dataclass(frozen=True, eq=False)
class Setting:
    """Responses to some problems.

    Attributes:
        policy: scores; the one that the base log-probabilities are of.
        others: `teacher` and `reference`, where there are any.
        branches: prompt and response of each rollout.
        questions: of each rollout.
        known: of each rollout's problem: `answer`, `wrong_answer`, `solution`, where there is one.
        arrays: over tokens or rollouts: what `gathering.gather` gave, `kind` and `advantage`.
        tiny: whether the task is the arithmetic of the tiny policies.
    """

    policy: Policy
    others: Mapping[str, Policy]
    branches: list[Branch]
    questions: list[str]
    known: list[dict[str, str]]
    arrays: Mapping[str, np.ndarray]
    tiny: bool

    @property
    def length(self) -> np.ndarray:
        """Tokens of each response."""
        return self.arrays["length"]

    @property
    def starts(self) -> np.ndarray:
        """First token of each response."""
        return np.cumsum(self.length) - self.length

    def of(self, name: str, rollout: int) -> np.ndarray:
        """An array over tokens, of one response."""
        start = self.starts[rollout]
        return self.arrays[name][start : start + self.length[rollout]]

    def part(self, rollouts: np.ndarray) -> "Setting":
        """Some of the responses."""
        inside = broadcast(np.isin(np.arange(self.length.size), rollouts), self.length)
        taken = {
            name: values[rollouts if values.size == self.length.size else inside]
            for name, values in self.arrays.items()
        }
        branches = [self.branches[i] for i in rollouts]
        questions = [self.questions[i] for i in rollouts]
        known = [self.known[i] for i in rollouts]
        return Setting(self.policy, self.others, branches, questions, known, taken, self.tiny)


Found = dict[str, np.ndarray]
Ids = list[int]


def logps(policy: Policy, setting: Setting, contexts: list[Ids | None]) -> np.ndarray:
    """Log p of every token behind other contexts; NaN where there is none."""
    pairs = list(zip(contexts, setting.branches, strict=True))
    asked = [Branch(tuple(c), b.response) for c, b in pairs if c is not None]
    found = iter(score(policy, asked))
    parts = [
        np.full(len(b.response), np.nan) if c is None else next(found).logp.astype(np.float64)
        for c, b in pairs
    ]
    return np.concatenate(parts)


def base(setting: Setting, *, policy: Policy | None = None) -> Found:
    """The pass that all others are measured by; another policy's by request."""
    contexts: list[Ids | None] = [list(branch.context) for branch in setting.branches]
    return {"again": logps(policy or setting.policy, setting, contexts)}


def updated_ratio(setting: Setting) -> Found:
    """P after one step of uniform credit over p before it."""
    credit = broadcast(setting.arrays["advantage"], setting.length)[None]
    (gradient,) = pooled_gradients(setting.policy, setting.branches, credit / credit.size)
    slope = np.abs(inner_products(setting.policy, setting.branches, gradient[None])[0]).mean()
    parameters = list(setting.policy.model.parameters())
    before = torch.nn.utils.parameters_to_vector(parameters).detach().clone()
    torch.nn.utils.vector_to_parameters(before + STEP / float(slope) * gradient, parameters)
    try:
        moved = base(setting)["again"]
    finally:
        torch.nn.utils.vector_to_parameters(before, parameters)
    return {"ratio": np.exp(moved - setting.arrays["logp"])}


def learning_values(setting: Setting) -> Found:
    """<grad log p, G>: G of every other problem, each half seen by the other half's."""
    credit = broadcast(setting.arrays["advantage"], setting.length)
    half = broadcast(np.unique(setting.arrays["group"], return_inverse=True)[1] % 2, setting.length)
    sides = np.stack([np.where(half == side, credit, 0.0) for side in (0, 1)]) / credit.size
    gradients = pooled_gradients(setting.policy, setting.branches, sides)
    seen = inner_products(setting.policy, setting.branches, gradients)
    return {"learning_value": np.where(half == 0, seen[1], seen[0])}


def gradients(setting: Setting) -> Found:
    """Proxies of token gradients at the head."""
    view = head_view(setting.policy, setting.branches)
    rows = row_gradient(view.hidden.astype(np.float64), view.logp.astype(np.float64))
    return {"row_gradient": rows, "hidden_gradient": view.hidden_gradient.astype(np.float64)}


def right_influence(setting: Setting) -> Found:
    """Influence of each token's head gradient on those of the group's right responses."""
    found = np.empty(int(setting.length.sum()))
    group = broadcast(setting.arrays["group"], setting.length)
    right = broadcast(setting.arrays["reward"], setting.length) == 1
    for number in np.unique(setting.arrays["group"]):
        members = np.flatnonzero(setting.arrays["group"] == number)
        view = head_view(setting.policy, [setting.branches[i] for i in members], residual=True)
        inside = group == number
        shared = view.residual[right[inside]].T @ view.hidden[right[inside]]
        found[inside] = ((view.residual @ shared) * view.hidden).sum(axis=1, dtype=np.float64)
    return {"right_influence": found}


def answer_places(setting: Setting) -> Iterator[tuple[int, int, int]]:
    """Rollout, first token and end of its last run of answer tokens, where there is one."""
    for rollout in range(setting.length.size):
        marked = setting.of("kind", rollout) == ANSWER
        if marked.any():
            end = int(np.flatnonzero(marked)[-1]) + 1
            start = end - 1
            while start and marked[start - 1]:
                start -= 1
            if start:
                yield rollout, start, end


def span_drops(setting: Setting) -> Found:
    """Fall of log p(answer) without each step before it."""
    spans, owners = [], []
    for rollout, start, end in answer_places(setting):
        step = setting.of("step", rollout)[:start]
        for number in np.unique(step[step >= 0]):
            inside = np.flatnonzero(step == number)
            spans.append(Span(rollout, int(inside[0]), int(inside[-1]) + 1, start, end))
            owners.append(setting.starts[rollout] + inside)
    drops = ablate(setting.policy, setting.branches, spans)
    found = _known_answers(setting)
    for inside, drop in zip(owners, drops, strict=True):
        found[inside] = drop
    return {"span_drop": found}


def answer_divergences(setting: Setting) -> Found:
    """KL of the answer's distributions from those with each token before it masked."""
    found = _known_answers(setting)
    filler = setting.policy.encode("and" if setting.tiny else " ")[0]
    for rollout, start, end in answer_places(setting):
        context, response = setting.branches[rollout]
        answer = tuple(response[start:end])
        masked = [
            Branch((*context, *response[:t], filler, *response[t + 1 : start]), answer)
            for t in range(start)
        ]
        view = head_view(
            setting.policy, [Branch((*context, *response[:start]), answer), *masked], residual=True
        )
        p = -view.residual.astype(np.float64).reshape(start + 1, len(answer), -1)
        p[:, np.arange(len(answer)), answer] += 1
        p = np.maximum(p, 1e-30)
        divergence = (p[0] * np.log(p[0] / p[1:])).sum(axis=-1).mean(axis=-1)
        first = setting.starts[rollout]
        found[first : first + start] = np.maximum(divergence, 0.0)
    return {"answer_kl": found}


def saliencies(setting: Setting) -> Found:
    """|gradient x embedding| of the answer's KL under noise on the embeddings."""
    found, policy = _known_answers(setting), setting.policy
    draw = torch.Generator().manual_seed(0)
    table = policy.model.get_input_embeddings()
    with evaluation(policy.model):
        for rollout, start, end in answer_places(setting):
            context, response = setting.branches[rollout]
            ids = torch.tensor([[*context, *response[: end - 1]]])
            with torch.no_grad():
                clean = table(ids)
                wanted = policy.model(inputs_embeds=clean).logits[0, len(context) + start - 1 :]
                wanted = wanted.log_softmax(-1)
            total = torch.zeros(ids.shape[1])
            for _ in range(DRAWS):
                noisy = clean + NOISE * torch.randn(clean.shape, generator=draw)
                noisy.requires_grad_()
                logits = policy.model(inputs_embeds=noisy).logits[0, len(context) + start - 1 :]
                apart = (wanted.exp() * (wanted - logits.log_softmax(-1))).sum()
                (slope,) = torch.autograd.grad(apart, noisy)
                total += (slope * clean).sum(-1)[0].abs() / DRAWS
            first = setting.starts[rollout]
            found[first : first + start] = total[len(context) : len(context) + start].numpy()
    return {"answer_saliency": found}


def value_gains(setting: Setting) -> Found:
    """Gain of each step in the share of right continuations."""
    starts = []
    for rollout, branch in enumerate(setting.branches):
        step = setting.of("step", rollout)
        inner = np.flatnonzero(np.diff(step)) + 1
        cuts = (0, *inner.tolist(), len(branch.response))
        right = bool(setting.arrays["reward"][rollout] == 1)
        starts.append(Start(branch.context, branch.response, tuple(dict.fromkeys(cuts)), right))

    def judge(place: int, ids: tuple[int, ...]) -> bool:
        words = [setting.policy.token_bytes(i).decode("utf-8", "replace").strip() for i in ids]
        return verify(words, setting.questions[place])

    (end,) = setting.policy.encode(arithmetic.END)
    told = resample(setting.policy, starts, judge, ends=[end], plan=TRIALS)
    gain, cut = told["gain"].values, told["first_cut"].values
    first = np.asarray(told["start"].values)[cut]
    widths = [np.diff(start.cuts) for start in starts]
    assert np.array_equal(np.bincount(first, minlength=len(starts)), [len(w) for w in widths])
    return {"value_gain": np.repeat(gain, np.concatenate(widths))}


def _known_answers(setting: Setting) -> np.ndarray:
    """0 for every token of a response with an answer, NaN elsewhere."""
    found = np.full(int(setting.length.sum()), np.nan)
    for rollout, *_ in answer_places(setting):
        start = setting.starts[rollout]
        found[start : start + setting.length[rollout]] = 0.0
    return found


Supply = Callable[[Setting], Found]
LEARNED: dict[str, Supply] = {"ratio": updated_ratio, "learning_value": learning_values}
CHEAP: dict[str, Supply] = {"gradients": gradients, "right_influence": right_influence}
COSTLY: dict[str, Supply] = {
    "value_gain": value_gains,
    "span_drop": span_drops,
    "answer_kl": answer_divergences,
    "answer_saliency": saliencies,
}
