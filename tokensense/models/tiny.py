"""The bundled policies: tiny Qwen3 models over words, taught on the planted tasks.

Reads  the folders of `data/tiny`, shipped with the package; or the words of a task, for new ones.
Gives  `folder` (of a shipped policy by its name), `wordings` (what a policy can be told),
       `new_model` (random weights).

A folder is one that plain transformers loads, with a card in it: `tokensense.json` for programs and
`README.md` for people. A shipped policy is asked for as `load_policy("tiny:mixed")`.

Every word is one token. Vocabulary entries and the tokens' bytes carry the blank before the word,
as in SentencePiece, so that joined bytes read as text and are encoded to the same ids; white space
of any kind separates words, and a word that the task does not have becomes `<unk>`. The template is
the message and then `?`, the last word of every prompt.

Source: notes/tinymodel.md, sections 0 and 1; notes/assay.md, section 1 (sizes).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tokensense.bundled import bundled
from tokensense.errors import PolicyError

SCHEME = "tiny:"
CARD = "tokensense.json"
ENGLISH = "english"
PAD, UNKNOWN, END = "<pad>", "<unk>", "<eos>"
CONTEXT = 1024
_BLANK = "▁"
_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}?{% endif %}"
)


@dataclass(frozen=True)
class Size:
    """How large a tiny policy is.

    Attributes:
        hidden: width of the residual stream.
        layers: of attention and feed-forward.
        heads: of attention, each with keys and values of its own; they divide `hidden`.
        inner: width of the feed-forward layers.
    """

    hidden: int
    layers: int
    heads: int
    inner: int


SIZES = {
    "arithmetic": Size(hidden=96, layers=4, heads=4, inner=192),
    "tables": Size(hidden=64, layers=2, heads=4, inner=192),
}


def root() -> Path:
    """The folder of the shipped policies."""
    return bundled("tiny")


def shipped() -> list[str]:
    """Names of the shipped policies, as `load_policy` takes them."""
    return [SCHEME + card.parent.name for card in sorted(root().glob("*/config.json"))]


def folder(name: str) -> Path:
    """The folder of a shipped policy.

    Args:
        name: such as `tiny:mixed`.

    Raises:
        PolicyError: no policy of this name is shipped; the message lists those that are.
    """
    if name not in shipped():
        raise PolicyError(
            f"A bundled policy is one of {', '.join(shipped()) or 'none'}; it is {name!r}. Name "
            "one of these; others are made by `python -m studies.build_tiny_policy`."
        )
    return root() / name.removeprefix(SCHEME)


def wordings(folder: Path) -> str:
    """The bank of sentences that a policy can be told, by its card; English without a card."""
    card = folder / CARD
    return str(json.loads(card.read_text("utf-8"))["wordings"]) if card.is_file() else ENGLISH


def new_model(
    words: Sequence[str], size: Size, *, seed: int
) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """A model with random weights over the words of a task, and its tokenizer.

    Args:
        words: distinct, without white space; the place of a word is its id. PAD, UNKNOWN and END
            are among them.
        size: of the model.
        seed: of the weights; torch's own generator is left as it was.

    Returns:
        The model on the CPU, float32; the tokenizer with its chat template.
    """
    tokenizer = _tokenizer(words)
    config = Qwen3Config(
        vocab_size=len(words),
        hidden_size=size.hidden,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        head_dim=size.hidden // size.heads,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    # Plain `generate` samples from the whole distribution, which is what scores are of.
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]  # has no types
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model, tokenizer


def _tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """One token a word; see the module's header."""
    special = (PAD, UNKNOWN, END)
    ids = {word if word in special else _BLANK + word: place for place, word in enumerate(words)}
    core = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    core.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    core.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_BLANK, prepend_scheme="always")
    core.decoder = decoders.Metaspace(replacement=_BLANK, prepend_scheme="always")
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # has no types
        tokenizer_object=core,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer
