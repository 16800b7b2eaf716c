from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokensense.errors import SchemaError
from tokensense.tasks.tables import (
    END,
    FILLERS,
    REGIMES,
    VOCABULARY,
    Chain,
    Regime,
    answer,
    decode,
    draw_chains,
    encode,
    plant_facts,
)
from tokensense.tasks.tables_examples import draw_examples
from tokensense.tasks.tables_labels import Slot, follow, label, verify
from tokensense.tasks.tables_values import (
    Form,
    Skills,
    oracle_credit,
    prefix_values,
    step_values,
)

FACTS = plant_facts(Regime(), np.random.default_rng(0))
CHAIN = Chain(3, (1, 4), chatty=True)
FORM = Form(index=0.99, table=0.95, operand=0.9, equals=0.97, answer=0.93, final=0.96, end=0.98)


def skills(form=FORM, seed=0):
    """Any distribution of results: every path is possible."""
    return Skills(np.random.default_rng(seed).dirichlet(np.ones(10), size=(8, 10)), form)


def enumerated(words, chain, facts, skills, memory):
    """Probability of reward 1, by writing every continuation out: slow and plain, on words only.

    Works on responses whose words fit their slots, whatever they say.
    """
    words = tuple(word for word in words if word not in FILLERS)
    if words not in memory:
        memory[words] = (
            sum(
                chance * enumerated((*words, word), chain, facts, skills, memory)
                for word, chance in following(words, chain, skills)
            )
            if words[-1:] != ("<eos>",)
            else float(paid(words, chain, facts))
        )
    return memory[words]


def paid(words, chain, facts):
    digit = chain.start
    for table in chain.tables:
        digit = facts.result[table, digit]
    return words[-3:] == ("ans", str(digit), "<eos>")


def following(words, chain, skills):
    """What the policy writes next, with probabilities; the rest breaks the response."""
    form = skills.form
    if "ans" in words:
        since = len(words) - words.index("ans")
        results = [words[i + 1] for i, word in enumerate(words) if word == "="]
        last = results[-1] if results else str(chain.start)
        return [(last, form.final)] if since == 1 else [("<eos>", form.end)]
    begins = [i for i, word in enumerate(words) if word.startswith("I_")]
    if not begins:
        return [("I_0", form.index)]
    step = words[begins[-1] :]
    number = int(step[0].removeprefix("I_"))
    if len(step) == 1:
        return [(f"o{chain.tables[number]}", form.table)]
    if len(step) == 2:
        last = words[begins[-1] - 1] if begins[-1] else str(chain.start)
        return [(last, form.operand)]
    if len(step) == 3:
        return [("=", form.equals)]
    if len(step) == 4:
        row = skills.answers[int(step[1].removeprefix("o")), int(step[2])]
        return [(str(result), chance) for result, chance in enumerate(row)]
    if number + 1 < len(chain.tables):
        return [(f"I_{number + 1}", form.index)]
    return [("ans", form.answer)]


TRACES = [
    "I_0 o1 3 = 5 I_1 o4 5 = 0 ans 0 <eos>",
    "well I_0 so o1 3 = 7 hmm hmm I_1 o4 7 = 2 hence ans 2 <eos>",
    "I_0 o6 3 = 5 I_1 o4 5 = 0 ans 1 <eos>",  # another table, another answer
    "I_0 o1 8 = 5 I_1 o4 9 = 0 ans 0 <eos>",  # wrong copies
    "I_1 o4 3 = 5 ans 5 <eos>",  # a step left out
    "I_0 o1 3 = 5 I_0 o1 5 = 2 I_1 o4 2 = 9 ans 9 <eos>",  # one done twice
    "ans 3 <eos>",
]


@pytest.mark.parametrize("text", TRACES)
@pytest.mark.parametrize("form", [FORM, Form()], ids=["slips", "no slips"])
def test_values_are_those_of_all_continuations_written_out(text, form):
    policy, memory = skills(form), {}
    words = text.split()
    slow = [enumerated(words[:n], CHAIN, FACTS, policy, memory) for n in range(len(words) + 1)]
    found = prefix_values(CHAIN, encode(text), facts=FACTS, skills=policy)
    np.testing.assert_allclose(found, slow, rtol=1e-12, atol=1e-15)
    credit = oracle_credit(CHAIN, encode(text), facts=FACTS, skills=policy)
    np.testing.assert_allclose(credit, np.diff(slow), rtol=1e-9, atol=1e-14)
    assert len(set(slow)) > 1  # the references themselves move


def test_three_steps_written_out():
    chain, policy = Chain(0, (7, 7, 2), chatty=False), skills(seed=3)
    slow = enumerated((), chain, FACTS, policy, {})
    assert prefix_values(chain, (), facts=FACTS, skills=policy) == pytest.approx(slow, rel=1e-12)
    assert step_values(chain, facts=FACTS, skills=policy)[0, 0] == pytest.approx(slow, rel=1e-12)


def test_one_step_by_hand():
    # V(start) = f's times the probability of the right result; a result decides all but the end.
    chain, policy = Chain(6, (2,), chatty=False), skills()
    right = FACTS.result[2, 6]
    p = policy.answers[2, 6, right]
    end = 0.93 * 0.96 * 0.98
    text = f"I_0 o2 6 = {right} ans {right} <eos>"
    expected = [
        *(0.99 * 0.95 * 0.9 * 0.97 * p * end, 0.95 * 0.9 * 0.97 * p * end),
        *(0.9 * 0.97 * p * end, 0.97 * p * end, p * end),
        *(end, 0.96 * 0.98, 0.98, 1.0),
    ]
    found = prefix_values(chain, encode(text), facts=FACTS, skills=policy)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_without_errors_a_value_is_a_product_and_one_error_loses_all():
    # Tables are permutations: a wrong digit stays wrong if no second error can lead back.
    sure = Skills(FACTS.answers(np.ones((8, 10))))
    right = [answer(Chain(3, CHAIN.tables[:n], False), FACTS) for n in (1, 2)]
    text = f"I_0 o1 3 = {right[0]} I_1 o4 {right[0]} = {right[1]} ans {right[1]} <eos>"
    assert prefix_values(CHAIN, encode(text), facts=FACTS, skills=sure).tolist() == [1.0] * 14
    wrong = (right[0] + 1) % 10
    text = f"I_0 o1 3 = {wrong} well I_1"
    credit = oracle_credit(CHAIN, encode(text), facts=FACTS, skills=sure)
    assert credit.tolist() == [0, 0, 0, 0, -1.0, 0, 0]


def written_out(chain, policy):
    """All responses that the policy can end, with their probabilities; slips are left out."""
    for results in product(range(10), repeat=len(chain.tables)):
        digits = (chain.start, *results)
        chance, words = 1.0, []
        for step, table in enumerate(chain.tables):
            words += [f"I_{step}", f"o{table}", str(digits[step]), "=", str(digits[step + 1])]
            chance *= policy.answers[table, digits[step], digits[step + 1]]
        yield chance, encode(" ".join([*words, "ans", str(digits[-1]), "<eos>"]))


def test_credit_is_a_fair_game_whose_squares_add_up_to_the_variance_of_the_reward():
    policy = skills(Form())
    value = step_values(CHAIN, facts=FACTS, skills=policy)[0, CHAIN.start]
    total, mean, squares = 0.0, np.zeros(13), 0.0
    for chance, response in written_out(CHAIN, policy):
        credit = oracle_credit(CHAIN, response, facts=FACTS, skills=policy)
        total += chance
        mean += chance * credit
        squares += chance * (credit**2).sum()
    assert total == pytest.approx(1.0)
    np.testing.assert_allclose(mean, 0.0, atol=1e-14)
    assert squares == pytest.approx(value * (1 - value), rel=1e-10)


def test_values_are_the_rewards_of_drawn_traces():
    # Monte Carlo over the generator, which knows nothing of the values: at the start, and among
    # traces with the same first result.
    regime = Regime(lookups=4, tagged_share=0.0)
    generator = np.random.default_rng(7)
    (chain,) = draw_chains(regime, count=1, generator=generator)
    examples = draw_examples(FACTS, regime, chains=[chain] * 6000, generator=generator)
    policy = Skills(FACTS.answers())
    rewards: dict[tuple[int, ...], list[bool]] = {}
    for example in examples:
        for n in (0, 5):
            rewards.setdefault(example.response[:n], []).append(example.right)
    large = {prefix: found for prefix, found in rewards.items() if len(found) >= 200}
    assert len(large) >= 3  # the start, the right result and the misconception
    for prefix, found in large.items():
        value = prefix_values(chain, prefix, facts=FACTS, skills=policy)[-1]
        error = (value * (1 - value) / len(found)) ** 0.5
        assert abs(np.mean(found) - value) <= 4.5 * error + 1e-12


@pytest.mark.parametrize(("name", "start"), [("A", 0.20), ("B", 0.20), ("C", 0.51), ("D", 0.13)])
def test_taught_policies_start_where_the_notes_say(name, start):
    # Mean true value over 8 worlds of 200 problems; the notes' own world gave .20, .21, .54, .13.
    generator = np.random.default_rng(0)
    values = []
    for _ in range(8):
        facts = plant_facts(REGIMES[name], generator)
        policy = Skills(facts.answers())
        for chain in draw_chains(REGIMES[name], count=200, generator=generator):
            values.append(step_values(chain, facts=facts, skills=policy)[0, chain.start])
    assert np.mean(values) == pytest.approx(start, abs=0.03)


def test_taught_traces_earn_their_value_in_the_mean():
    regime = REGIMES["A"]
    generator = np.random.default_rng(1)
    chains = draw_chains(regime, count=40, generator=generator)
    policy = Skills(FACTS.answers())
    for example in draw_examples(FACTS, regime, chains=chains, generator=generator):
        values = prefix_values(example.chain, example.response, facts=FACTS, skills=policy)
        credit = oracle_credit(example.chain, example.response, facts=FACTS, skills=policy)
        found = label(example.chain, example.response, facts=FACTS)
        assert values[-1] == found.reward == example.right
        assert credit.sum() == pytest.approx(found.reward - values[0], abs=1e-12)
        # Without slips of form only results decide anything.
        assert set(np.flatnonzero(abs(credit) > 1e-12)) <= set(
            np.flatnonzero(found.slot == Slot.RESULT)
        )


IDS = st.integers(-1, len(VOCABULARY))
CORE = st.sampled_from(encode("I_0 I_1 o1 o4 3 5 0 = ans <eos> well"))


@given(st.one_of(st.lists(IDS, max_size=30), st.lists(CORE, max_size=30)))
def test_credit_of_any_sequence_telescopes(tokens):
    policy = skills()
    values = prefix_values(CHAIN, tokens, facts=FACTS, skills=policy)
    credit = oracle_credit(CHAIN, tokens, facts=FACTS, skills=policy)
    assert len(values) == len(tokens) + 1
    assert ((values >= 0) & (values <= 1)).all()
    assert credit.sum() == pytest.approx(values[-1] - values[0], abs=1e-12)
    reward = verify(CHAIN, tokens, facts=FACTS)
    if END in tokens or follow(CHAIN, tokens)[-1].slot == Slot.BROKEN:
        assert values[-1] == reward
    assert (credit[~label(CHAIN, tokens, facts=FACTS).core] == 0.0).all()


def test_a_response_that_was_cut_off_keeps_its_value():
    policy = skills()
    values = prefix_values(CHAIN, encode("I_0 o1 3 ="), facts=FACTS, skills=policy)
    assert values[-1] > 0
    assert verify(CHAIN, encode("I_0 o1 3 ="), facts=FACTS) == 0


@pytest.mark.parametrize("name", ["index", "end", "final"])
@pytest.mark.parametrize("chance", [-0.1, 1.1, float("nan")])
def test_form_needs_probabilities(name, chance):
    with pytest.raises(SchemaError, match=f"`{name}` needs a value in"):
        Form(**{name: chance})


@pytest.mark.parametrize(
    "answers",
    [
        np.full((8, 10, 10), 0.11),
        np.full((8, 10, 10), np.nan),
        np.full((8, 10, 9), 1 / 9),
        np.eye(10)[np.zeros((8, 10), dtype=int)] * 2 - 0.1,
    ],
)
def test_skills_need_distributions(answers):
    with pytest.raises(SchemaError, match=r"`answers` needs shape \(8, 10, 10\)"):
        Skills(answers)


def test_skills_may_be_float32():
    answers = skills().answers
    single = Skills(answers.astype(np.float32), FORM)
    text = encode(TRACES[0])
    np.testing.assert_allclose(
        prefix_values(CHAIN, text, facts=FACTS, skills=single),
        prefix_values(CHAIN, text, facts=FACTS, skills=skills()),
        rtol=1e-5,
    )
    assert decode(text) == TRACES[0]
