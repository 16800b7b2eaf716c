import re

import pytest
import torch
from tokenizers import processors

from tests.bigram import TEMPLATE, bigram_policy, byte_tokenizer
from tokensense.errors import PolicyError, SchemaError
from tokensense.models.policy import Policy, load_policy

MESSAGE = "<|start|>system\nBe brief.{s}<|end|>\n<|start|>user\n{u}<|end|>\n<|start|>assistant\n"


def text_of(policy: Policy, ids: list[int]) -> str:
    return b"".join(policy.token_bytes(i) for i in ids).decode()


def policy_with(template: str | None, **tokens) -> Policy:
    tokenizer = byte_tokenizer(template=template)
    for name, value in tokens.items():
        setattr(tokenizer, name, value)
    return Policy(bigram_policy().model, tokenizer, name="tiny")


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        ("user_end", MESSAGE.format(s="", u="1 {x}?\n\nIt is \\boxed{2}.")),
        ("user_start", MESSAGE.format(s="", u="It is \\boxed{2}.\n\n1 {x}?")),
        ("system", MESSAGE.format(s="\n\nIt is \\boxed{2}.", u="1 {x}?")),
    ],
)
def test_an_insert_goes_where_it_should_and_nowhere_else(placement, expected):
    policy = bigram_policy()
    ids = policy.render("1 {x}?", insert="It is \\boxed{2}.", placement=placement)
    assert text_of(policy, ids) == expected
    assert text_of(policy, policy.render("1 {x}?")) == MESSAGE.format(s="", u="1 {x}?")


def test_a_marker_that_is_also_bos_may_come_often():
    policy = bigram_policy()
    ids = policy.render("1?")
    assert ids[0] == policy.bos_id
    assert ids.count(policy.bos_id) == 3  # system, user, assistant
    assert ids[1] != policy.bos_id


def test_without_a_template_the_plain_format_is_used():
    policy = policy_with(None)
    assert text_of(policy, policy.render("1?")) == "Question: 1?\nAnswer:"
    found = text_of(policy, policy.render("1?", insert="Two.", placement="system"))
    assert found == "Two.\n\nQuestion: 1?\nAnswer:"


def test_bos_added_by_the_tokenizer_comes_once():
    policy = policy_with(None)
    core = policy.tokenizer.backend_tokenizer
    core.post_processor = processors.TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", 256)]
    )
    assert policy.tokenizer("a")["input_ids"][0] == 256
    assert 256 not in policy.encode("a")
    ids = policy.render("1?")
    assert ids[0] == 256
    assert ids.count(256) == 1


def test_two_bos_at_the_front_are_refused():
    policy = policy_with("<|start|>" + TEMPLATE)
    with pytest.raises(PolicyError, match="needs one beginning-of-text token"):
        policy.render("1?")


def test_a_template_that_changes_more_than_the_insert_is_refused():
    policy = policy_with("{{ messages[0]['content'] | length }}:{{ messages[0]['content'] }}")
    with pytest.raises(PolicyError, match="changes more than that near character 0"):
        policy.render("1?", insert="Two.")


def test_a_template_that_refuses_a_system_message_says_so():
    refusal = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    )
    policy = policy_with(refusal + "{{ messages[0]['content'] }}")
    assert policy.render("1?", insert="Two.") != policy.render("1?")
    with pytest.raises(PolicyError, match=r"refuses \['system', 'user'\]: no system"):
        policy.render("1?", insert="Two.", placement="system")


def test_a_template_that_prints_the_date_gives_the_same_prompt_every_day():
    policy = policy_with("{{ strftime_now('%d %B %Y') }} {{ messages[0]['content'] }}")
    assert text_of(policy, policy.render("1?")) == "26 July 2024 1?"


def test_an_unknown_placement_is_refused():
    with pytest.raises(SchemaError, match="`placement` needs one of"):
        bigram_policy().render("1?", insert="Two.", placement="middle")


def test_encoding_gives_the_characters_of_each_token():
    ids, offsets = bigram_policy().encode_with_offsets("hé!")
    assert len(ids) == 4
    assert offsets == [(0, 1), (1, 2), (1, 2), (2, 3)]


def test_padded_ids_have_no_bytes_and_others_are_refused():
    policy = bigram_policy(padding=2)
    assert policy.head_width == 260
    assert policy.token_bytes(259) == b""
    for bad in (260, -1):
        with pytest.raises(
            PolicyError, match=re.escape(f"an id in [0, 260) of bigram; it is {bad}")
        ):
            policy.token_bytes(bad)


def test_digests_follow_weights_tokenizer_and_template():
    one, same, other = bigram_policy(), bigram_policy(), bigram_policy(seed=1)
    assert one.digest == same.digest != other.digest
    assert one.tokenizer_digest == other.tokenizer_digest
    one.tokenizer("a", padding="max_length", max_length=9, truncation=True)
    assert one.tokenizer_digest == same.tokenizer_digest
    assert policy_with(TEMPLATE).template_digest == one.template_digest
    assert policy_with(None).template_digest != one.template_digest
    more = byte_tokenizer()
    more.add_tokens(["<new>"])
    assert Policy(one.model, more, name="more").tokenizer_digest != one.tokenizer_digest


def test_a_policy_says_what_it_is():
    policy = bigram_policy(context_length=77)
    assert "bigram" in repr(policy)
    assert "context 77" in repr(policy)
    assert (policy.dtype, policy.device.type, policy.context_length) == ("float32", "cpu", 77)
    assert not policy.model.training


def test_a_folder_comes_back_as_it_was_saved(tmp_path):
    policy = bigram_policy()
    folder = tmp_path / "saved"
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    again = load_policy(folder)
    assert again.name == "saved"
    assert again.digest == policy.digest
    assert again.render("1?", insert="x") == policy.render("1?", insert="x")
    assert load_policy(folder, dtype="bfloat16").dtype == "bfloat16"


def test_pickled_weights_are_refused(tmp_path):
    policy = bigram_policy()
    policy.model.config.save_pretrained(tmp_path)
    torch.save(policy.model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(PolicyError, match=r"needs `\.safetensors` weights; .*pytorch_model\.bin"):
        load_policy(tmp_path)


@pytest.mark.parametrize("source", ["nobody/nothing-here", "nowhere/file.gguf"])
def test_what_is_not_there_is_named(source):
    with pytest.raises(PolicyError, match=source):
        load_policy(source)


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"not one")
    with pytest.raises(PolicyError, match="none of these"):
        load_policy(tmp_path / "model.gguf")


def test_an_unknown_dtype_is_refused(tmp_path):
    with pytest.raises(SchemaError, match="`dtype` needs one of"):
        load_policy(tmp_path, dtype="int4")
