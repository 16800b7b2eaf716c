"""The exact bytes of single tokens, and what characters they cover.

Reads  a tokenizer's vocabulary and the kind of decoder it has.
Gives  byte_reader, character_offsets.
Source byte-level BPE: the byte table of GPT-2's `encoder.py`; SentencePiece: `▁` for a blank,
       `<0xE2>` for a byte.

`decode` is no way to these bytes: part of a character decodes to U+FFFD, and blanks at the front
may go.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import cache

from transformers import PreTrainedTokenizerBase

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_reader(tokenizer: PreTrainedTokenizerBase) -> Callable[[int], bytes]:
    """Function from a token id to the token's bytes; b"" for ids that the tokenizer does not have.

    Special and added tokens are their text. Byte-level BPE and SentencePiece with byte fall-back
    are exact; of other tokenizers (word level, word pieces) it is the piece's text, which lacks the
    blanks around it.
    """
    added = {i: str(t).encode() for i, t in tokenizer.added_tokens_decoder.items()}
    kinds = _decoder_kinds(tokenizer)

    def read(token_id: int) -> bytes:
        if token_id in added:
            return added[token_id]
        piece = tokenizer.convert_ids_to_tokens(token_id) if token_id < len(tokenizer) else None
        return _piece_bytes(piece, kinds) if isinstance(piece, str) else b""

    return read


def character_offsets(text: str, pieces: Sequence[bytes]) -> list[tuple[int, int]] | None:
    r"""Characters [start, end) of `text` that each piece covers; None where the bytes are others.

    Example:
        >>> character_offsets("é 1", [b"\xc3", b"\xa9", b" 1"])
        [(0, 1), (0, 1), (1, 3)]
    """
    if b"".join(pieces) != text.encode():
        return None
    character_of = [i for i, c in enumerate(text) for _ in range(len(c.encode()))]
    found, start = [], 0
    for piece in pieces:
        end = start + len(piece)
        if piece:
            found.append((character_of[start], character_of[end - 1] + 1))
        else:
            here = character_of[start] if start < len(character_of) else len(text)
            found.append((here, here))
        start = end
    return found


def _decoder_kinds(tokenizer: PreTrainedTokenizerBase) -> frozenset[str]:
    """Names of the decoder's parts, and `Blank` where `▁` stands for a blank."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return frozenset()
    decoder = json.loads(backend.to_str()).get("decoder") or {}
    parts = [decoder, *decoder.get("decoders", ())]
    kinds = {part.get("type", "") for part in parts}
    if any("▁" in json.dumps(part, ensure_ascii=False) for part in parts):
        kinds.add("Blank")
    return frozenset(kinds)


def _piece_bytes(piece: str, kinds: frozenset[str]) -> bytes:
    """Bytes of one vocabulary entry."""
    if "ByteLevel" in kinds:
        table = _byte_table()
        return bytes(table[c] for c in piece)
    if "ByteFallback" in kinds and (match := _BYTE_PIECE.fullmatch(piece)):
        return bytes([int(match[1], 16)])
    if kinds & {"Metaspace", "Blank"}:
        return piece.replace("▁", " ").encode()
    return piece.encode()


@cache
def _byte_table() -> dict[str, int]:
    """Byte of each printable stand-in in byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(hidden)}
