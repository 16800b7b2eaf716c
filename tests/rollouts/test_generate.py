from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tests.builders import END, ByteEncoder, problems
from tests.models.zoo import tiny_policy
from tokensense.errors import PolicyError, SchemaError
from tokensense.models.sampler import sample
from tokensense.rollouts.generate import generate, responses
from tokensense.rollouts.trajectory import Imported, assemble
from tokensense.schema import Finish, IdsOrigin
from tokensense.tasks.problem import Problem

VOCABULARY = 260


class TinyPolicy(ByteEncoder):
    """A random model over bytes, with what `generate` needs of a policy."""

    name = "tiny"

    def __init__(self, model, *, end=END):
        self.model = model.eval()
        self.tokenizer = SimpleNamespace(eos_token_id=end)
        self.device = torch.device("cpu")


def llama(**changes):
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        eos_token_id=None,
        bos_token_id=None,
        initializer_range=0.3,
        **changes,
    )
    return LlamaForCausalLM(config)


def gpt2():
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=64,
        eos_token_id=None,
        bos_token_id=None,
        initializer_range=0.5,
    )
    return GPT2LMHeadModel(config)


def greedy(model, prompt, count):
    """Slow reference: the likeliest token, one forward pass of the whole text each."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def ids_of(policy, made, **options):
    return [trace.ids for trace in generate(policy, made, max_new_tokens=8, **options)]


@pytest.fixture(scope="module")
def policy():
    return TinyPolicy(llama())


@pytest.mark.parametrize("make", [llama, gpt2])
def test_rows_of_unequal_prompts_equal_one_at_a_time(make):
    policy = TinyPolicy(make(), end=None)
    made = [Problem(str(n), "ab" * n, None) for n in (1, 9, 4)]
    found = ids_of(policy, made, temperature=0.0, batch=3)
    assert found == [tuple(greedy(policy.model, policy.render(p.question), 8)) for p in made]


def test_traces_come_in_order_with_names_ids_and_finish(policy):
    made = problems(3)
    found = list(generate(policy, made, group=2, max_new_tokens=5, batch=4, seed=3))
    assert [trace.problem for trace in found] == ["p0", "p0", "p1", "p1", "p2", "p2"]
    assert [trace.name for trace in found] == ["p0/0", "p0/1", "p1/0", "p1/1", "p2/0", "p2/1"]
    assert {trace.generator for trace in found} == {"tiny"}
    for trace in found:
        stopped = trace.ids[-1] == END
        assert trace.finish == (Finish.STOP if stopped else Finish.LENGTH)
        assert END not in trace.ids[:-1]
        assert stopped or len(trace.ids) == 5
        assert np.isnan(trace.reward)


def test_a_seed_gives_the_same_ids_and_another_seed_others(policy):
    made = problems(3)
    first = ids_of(policy, made, seed=5, group=2)
    torch.rand(7)  # the state of torch's generator does not matter,
    before = torch.get_rng_state()
    assert ids_of(policy, made, seed=5, group=2) == first
    assert torch.equal(torch.get_rng_state(), before)  # nor is it changed
    assert ids_of(policy, made, seed=6, group=2) != first


def test_batches_do_not_repeat_each_others_random_numbers(policy):
    same = [Problem(str(n), "same", None) for n in range(6)]
    assert len(set(ids_of(policy, same, batch=1))) > 1


class Planned(torch.nn.Module):
    """Stands in for the last layer of a model: likes one token, whatever was said before."""

    def __init__(self, liked):
        super().__init__()
        self.liked = liked
        self.weight = torch.zeros(1)

    def forward(self, hidden):
        logits = torch.zeros(*hidden.shape[:-1], VOCABULARY)
        logits[..., self.liked] = 50.0
        return logits


@pytest.mark.parametrize("where", ["tokenizer", "config", "generation_config"])
def test_an_end_token_is_part_of_the_ids_and_not_of_the_text(where):
    model = llama()
    model.lm_head = Planned(END)
    policy = TinyPolicy(model, end=END if where == "tokenizer" else None)
    if where != "tokenizer":
        getattr(model, where).eos_token_id = [7, END]
    (trace,) = generate(policy, problems(1), max_new_tokens=4)
    assert trace.ids == (END,)
    assert trace.text == ""
    assert trace.finish == Finish.STOP


def test_without_an_end_token_responses_reach_their_length():
    model = llama()
    model.lm_head = Planned(0)  # the id that pads
    (trace,) = generate(TinyPolicy(model, end=None), problems(1), max_new_tokens=4)
    assert trace.ids == (0, 0, 0, 0)  # padding's id, sampled, is a token like others
    assert trace.finish == Finish.LENGTH


def test_rows_that_end_early_are_cut_at_their_own_end():
    class Counting(Planned):  # row 0 likes END at once, row 1 at its third token
        def forward(self, hidden):
            logits = torch.zeros(*hidden.shape[:-1], VOCABULARY)
            logits[0, :, END] = 50.0
            logits[1, :, END if self.calls == 2 else 65] = 50.0
            self.calls += 1
            return logits

    model = llama()
    model.lm_head = Counting(END)
    model.lm_head.calls = 0
    first, second = generate(TinyPolicy(model), problems(2), max_new_tokens=6)
    assert first.ids == (END,)
    assert second.ids == (65, 65, END)
    assert second.text == "AA"


def test_habits_of_the_checkpoint_are_set_aside_and_given_back(policy):
    made = problems(2)
    plain = ids_of(policy, made, seed=1)
    own = policy.model.generation_config
    own.top_k, own.repetition_penalty, own.suppress_tokens = 1, 9.0, list(range(200))
    own.do_sample = False
    try:
        assert ids_of(policy, made, seed=1) == plain
        assert policy.model.generation_config is own
    finally:
        own.top_k = own.repetition_penalty = own.suppress_tokens = own.do_sample = None


def test_tokens_are_drawn_from_the_whole_distribution_at_the_temperature():
    class Two(Planned):  # token 65 with logit 1, 66 with 0, the others never
        def forward(self, hidden):
            logits = torch.full((*hidden.shape[:-1], VOCABULARY), -1e9)
            logits[..., 65], logits[..., 66] = 1.0, 0.0
            return logits

    model = llama()
    model.lm_head = Two(END)
    found = generate(TinyPolicy(model), problems(1), group=20, max_new_tokens=100, temperature=2.0)
    share = np.mean([token == 65 for trace in found for token in trace.ids])
    expected = 1 / (1 + np.exp(-1 / 2.0))  # .622; at temperature 1 it would be .731
    assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / 2000)


def test_more_tokens_than_any_habitual_top_k_can_come():
    class Alike(Planned):  # nearly equal, but no ties: a cut to the best 50 would leave 50
        def forward(self, hidden):
            return torch.linspace(0.0, 0.01, VOCABULARY).expand(*hidden.shape[:-1], -1)

    model = llama()
    model.lm_head = Alike(END)
    found = generate(TinyPolicy(model, end=None), problems(1), group=8, max_new_tokens=60)
    assert len({token for trace in found for token in trace.ids}) > 150


def test_training_mode_is_put_back_and_dropout_is_off():
    policy = TinyPolicy(llama(attention_dropout=0.9), end=None)
    calm = ids_of(policy, problems(1), temperature=0.0)
    policy.model.train()
    assert ids_of(policy, problems(1), temperature=0.0) == calm
    assert policy.model.training


def test_traces_become_a_node_with_exact_ids(policy):
    made = problems(2)
    found = list(generate(policy, made, group=2, max_new_tokens=6))
    node = assemble(Imported(made, found), policy)
    assert set(node["ids_origin"].values.tolist()) == {IdsOrigin.EXACT}
    assert node["token_id"].values.tolist() == [i for trace in found for i in trace.ids]
    assert node.attrs["sampled_by"] == ["tiny"]


def test_partial_characters_show_as_replacement_characters():
    model = llama()
    model.lm_head = Planned(0xC3)  # the first byte of "é" again and again
    (trace,) = generate(TinyPolicy(model), problems(1), max_new_tokens=3)
    assert trace.text == "\ufffd" * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": 0}, "`group` needs"),
        ({"max_new_tokens": 0}, "`max_new_tokens` needs"),
        ({"temperature": -1.0}, "`temperature` needs"),
        ({"batch": 0}, "`batch` needs"),
    ],
)
def test_numbers_out_of_range_are_refused(policy, options, message):
    with pytest.raises(SchemaError, match=message):
        list(generate(policy, problems(1), **options))


def test_a_response_that_may_not_fit_is_refused_by_the_problems_name(policy):
    with pytest.raises(PolicyError, match=r"'p0' needs a prompt of 1 to 16 tokens.* it has 17"):
        list(generate(policy, problems(1), max_new_tokens=policy.context_length - 16))


def test_progress_goes_to_standard_error_only_when_asked(policy, capsys):
    list(generate(policy, problems(1), max_new_tokens=2))
    assert capsys.readouterr().err == ""
    list(generate(policy, problems(1), max_new_tokens=2, progress=True))
    assert "1/1" in capsys.readouterr().err


def test_our_own_sampler_draws_where_it_can_and_keeps_log_probabilities():
    policy, made = tiny_policy("llama"), problems(2)
    found = responses(policy, made, group=3, max_new_tokens=6, seed=4)
    assert [trace.name for trace in found] == [f"p{i}/{k}" for i in range(2) for k in range(3)]
    assert [len(trace.logps) for trace in found] == [len(trace.ids) for trace in found]
    drawn = sample(
        policy, [policy.render(p.question) for p in made for _ in range(3)],
        max_new_tokens=6, ends={257}, seed=4,
    )  # fmt: skip
    assert [trace.ids for trace in found] == [row.ids for row in drawn]
    assert [trace.finish for trace in found] == [row.finish for row in drawn]
    again = responses(policy, made, group=3, max_new_tokens=6, seed=4)
    assert found == again


def test_other_policies_are_sampled_by_transformers():
    policy, made = tiny_policy("mistral"), problems(2)
    options = {"group": 2, "max_new_tokens": 6, "seed": 4}
    found = responses(policy, made, **options)
    assert found == list(generate(policy, made, **options))
    assert {trace.logps for trace in found} == {None}


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_either_way_refuses_what_does_not_fit(name):
    policy = tiny_policy(name)
    with pytest.raises(SchemaError, match="group"):
        responses(policy, problems(1), group=0)
    with pytest.raises(PolicyError, match="problem 'p0' needs a prompt"):
        responses(policy, problems(1), max_new_tokens=256)
