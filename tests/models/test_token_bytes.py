import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.bigram import byte_tokenizer
from tokensense.models.token_bytes import byte_reader, character_offsets


def test_every_byte_of_a_byte_level_vocabulary_comes_back():
    tokenizer = byte_tokenizer()
    read = byte_reader(tokenizer)
    assert sorted(read(i) for i in range(256)) == [bytes([b]) for b in range(256)]
    assert read(256) == b"<|start|>"
    assert read(258) == b""  # the tokenizer ends at 257


def test_sentencepiece_blanks_and_byte_pieces():
    vocab = {"▁a": 0, "<0xE2>": 1, "▁": 2, "<unk>": 3}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    read = byte_reader(PreTrainedTokenizerFast(tokenizer_object=core))
    assert [read(i) for i in range(3)] == [b" a", b"\xe2", b" "]


def test_word_level_pieces_are_their_text():
    core = Tokenizer(models.WordLevel({"two": 0, "<0xE2>": 1}, unk_token="two"))
    read = byte_reader(PreTrainedTokenizerFast(tokenizer_object=core))
    assert [read(0), read(1)] == [b"two", b"<0xE2>"]


@pytest.mark.parametrize(
    ("text", "pieces", "expected"),
    [
        ("", [], []),
        ("ab", [b"a", b"b"], [(0, 1), (1, 2)]),
        # One character over two tokens is covered by both; an empty piece covers nothing.
        ("a😀b", [b"a\xf0", b"\x9f\x98\x80", b"", b"b"], [(0, 2), (1, 2), (2, 2), (2, 3)]),
        ("a", [b"a", b""], [(0, 1), (1, 1)]),
        ("ab", [b"a"], None),
    ],
)
def test_offsets_count_characters(text, pieces, expected):
    assert character_offsets(text, pieces) == expected
