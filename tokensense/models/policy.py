"""A language model with its tokenizer: encodes, renders prompts, is asked for log-probabilities.

Reads  a hub id (local cache only), a folder with safetensors, a `.gguf` file (always dense), or
       the name of a bundled policy.
Gives  Policy, load_policy. Every string becomes ids here; the rest of the package sees ids only.
Source the GGUF behaviour of transformers: `dequantize=True` gives plain `Linear` modules that can
       be saved again; without it, weights stay packed where the `kernels` package is found, and its
       code comes from the network.

Never loads pickles (`use_safetensors=True`), remote code (`trust_remote_code=False`) or from the
network.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from tokensense.checks import require_member
from tokensense.errors import PolicyError
from tokensense.models import tiny
from tokensense.models.dense_copy import dense_copy, is_gguf, quiet, split_name
from tokensense.models.processes import own_device
from tokensense.models.token_bytes import byte_reader, character_offsets
from tokensense.reprs import table_html

DTYPES = ("float32", "bfloat16", "float16")
PLACEMENTS = ("system", "user_end", "user_start")
# For tokenizers without a chat template. No blank after the colon: tokenizers put it into the next
# word.
PLAIN_FORMAT = "Question: {content}\nAnswer:"
UNBOUNDED = 2**31 - 1
# Some templates print "today"; a prompt must not depend on the day on which it is scored.
FIXED_DATE = "{%- macro strftime_now(format) -%}26 July 2024{%- endmacro %}"


class Policy:
    """A causal language model in evaluation mode, its tokenizer, and what identifies both.

    Args:
        model: any `AutoModelForCausalLM`; put into evaluation mode.
        tokenizer: its tokenizer.
        name: what figures and stores call it.
        wordings: the bank of sentences (`probes.bank`) that it can be told.

    Attributes:
        model: as given.
        tokenizer: as given.
        name: as given.
        wordings: as given.
        bos_id: id of the beginning-of-text token, None where the tokenizer has none.
        context_length: most tokens that the model was made for, prompt and response together.
        objections: what self-checks found, by name; "" for none. The scorer fills it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str,
        wordings: str = tiny.ENGLISH,
    ) -> None:
        model.eval()  # type: ignore[no-untyped-call]
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.wordings = wordings
        self.bos_id: int | None = tokenizer.bos_token_id
        self.objections: dict[str, str] = {}
        config = model.config.get_text_config()
        self.context_length = int(getattr(config, "max_position_embeddings", None) or UNBOUNDED)

    def __repr__(self) -> str:
        millions = sum(p.numel() for p in self.model.parameters()) / 1e6
        return (
            f"Policy({self.name!r}, {type(self.model).__name__}, {millions:.1f} M parameters, "
            f"{self.dtype}, "
            f"{self.device}, vocabulary {self.head_width}, context {self.context_length})"
        )

    def _repr_html_(self) -> str:
        facts = repr(self)[len(f"Policy({self.name!r}, ") : -1].split(", ")
        return table_html(f"Policy {self.name}", [(fact,) for fact in facts])

    @property
    def device(self) -> torch.device:
        """Where the input embeddings lie."""
        return next(self.model.get_input_embeddings().parameters()).device

    @property
    def dtype(self) -> str:
        """Number format of the weights, such as `float32`."""
        return str(self.model.get_input_embeddings().weight.dtype).removeprefix("torch.")

    @cached_property
    def head_width(self) -> int:
        """Tokens that get a probability; a padded vocabulary has more than the tokenizer.

        Raises:
            PolicyError: the model has no head.
        """
        head = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if head is None:
            raise PolicyError(
                f"A policy needs a language-model head; {type(self.model).__name__} has none. "
                "Give a causal language model."
            )
        return int(head.weight.shape[0])

    @cached_property
    def digest(self) -> str:
        """Sha256 over names, shapes, dtypes and bytes of all parameters, sorted by name.

        Computed at first use and kept: about 1.5 s a GB on one core.
        """
        found = hashlib.sha256()
        for name, value in sorted(self.model.named_parameters(), key=lambda item: item[0]):
            found.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
            flat = value.detach().cpu().contiguous().view(torch.uint8).reshape(-1)
            found.update(flat.numpy().data)
        return found.hexdigest()

    @cached_property
    def tokenizer_digest(self) -> str:
        """Sha256 over all that turns text into ids (not: padding and truncation settings)."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            parts: dict[str, Any] = {"vocabulary": sorted(self.tokenizer.get_vocab().items())}
        else:
            parts = json.loads(backend.to_str())
            # Calls with `padding=True` leave their mark here without changing an id.
            parts = {k: v for k, v in parts.items() if k not in ("padding", "truncation")}
        parts["class"] = type(self.tokenizer).__name__
        parts["bos"] = self.tokenizer.bos_token
        return _digest(json.dumps(parts, sort_keys=True, ensure_ascii=False))

    @cached_property
    def template_digest(self) -> str:
        """Sha256 over the chat template, or over `PLAIN_FORMAT` where there is none."""
        return _digest(_template_text(self.tokenizer) or PLAIN_FORMAT)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, nothing added; special tokens written out in the text become their ids."""
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return ids[1:] if self._forces_bos and ids and ids[0] == self.bos_id else ids

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids as `encode`, and for each the characters [start, end) of `text` that it covers.

        Taken from the tokens' bytes where these add up to the text; a character split over several
        tokens is covered by each of them. Otherwise the tokenizer's own offsets.

        Raises:
            PolicyError: the tokens' bytes are not the text and the tokenizer keeps no offsets.
        """
        ids = self.encode(text)
        exact = character_offsets(text, [self.token_bytes(i) for i in ids])
        if exact is not None:
            return ids, exact
        if not self.tokenizer.is_fast:
            raise PolicyError(
                "Character offsets need a tokenizer whose bytes give the text back, or a fast "
                "one; "
                f"{type(self.tokenizer).__name__} is neither. Load the policy with a "
                "`tokenizer.json`."
            )
        found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        offsets = [(int(start), int(end)) for start, end in found["offset_mapping"]]
        return ids, offsets[len(offsets) - len(ids) :]

    def token_bytes(self, token_id: int) -> bytes:
        """Exact bytes of one token: part of a character too, special tokens as their text.

        An id that the head has and the tokenizer does not (padded vocabulary) has no bytes: b"".

        Raises:
            PolicyError: the id is outside the head.
        """
        if not 0 <= token_id < max(self.head_width, len(self.tokenizer)):
            raise PolicyError(
                f"`token_bytes` needs an id in [0, {self.head_width}) of {self.name}; it is "
                f"{token_id}. "
                "Check that ids and policy belong together."
            )
        return self._read_bytes(token_id)

    def plain_text(self, ids: Sequence[int]) -> str:
        """Text of ids without their special tokens, as trainers print it."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def render(self, question: str, *, insert: str = "", placement: str = "user_end") -> list[int]:
        """Prompt ids up to and including what makes the model answer.

        The text comes from the tokenizer's chat template, or from `PLAIN_FORMAT` where there is
        none, and the prompt with an insert is the base prompt with one stretch put in: checked on
        the text, every time.

        Args:
            question: the problem, as given.
            insert: text of the condition; "" gives the base prompt.
            placement: `user_end` and `user_start` put it after or before the question, a blank line
                between; `system` puts it after the system message that the template has by itself,
                or makes one.

        Raises:
            SchemaError: `placement` is none of the three.
            PolicyError: the template refuses a system message, changes more than the insert, or BOS
                comes twice.
        """
        require_member("placement", placement, PLACEMENTS)
        base = self._prompt_text(question, system="")
        if not insert:
            return self._prompt_ids(base)
        if placement == "user_end":
            text = self._prompt_text(f"{question}\n\n{insert}", system="")
        elif placement == "user_start":
            text = self._prompt_text(f"{insert}\n\n{question}", system="")
        else:
            text = self._prompt_text(question, system=self._system_message(base, question, insert))
        _require_one_stretch(base, text, insert, self.name)
        return self._prompt_ids(text)

    def _prompt_text(self, content: str, *, system: str) -> str:
        """Prompt text by the template; `system` "" leaves the system message to the template."""
        template = _template_text(self.tokenizer)
        if template is None:
            return (f"{system}\n\n" if system else "") + PLAIN_FORMAT.replace("{content}", content)
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": content})
        if "strftime_now" in template:
            template = FIXED_DATE + template
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, chat_template=template
            )
        except TemplateError as cause:
            raise PolicyError(
                f"The chat template of {self.name} refuses {[m['role'] for m in messages]}: "
                f"{cause}. "
                "Use a condition placed `user_end` or `user_start`."
            ) from cause
        return str(text)

    def _system_message(self, base: str, question: str, insert: str) -> str:
        """`insert`, after the system message that the template has by itself (many have one)."""
        mark = "\x00"
        before, found, after = self._prompt_text(question, system=mark).partition(mark)
        inside = base[len(before) : len(base) - len(after)]
        if found and inside and base == f"{before}{inside}{after}":
            return f"{inside}\n\n{insert}"
        return insert

    def _prompt_ids(self, text: str) -> list[int]:
        """Ids of a rendered prompt.

        BOS: as the template writes it; without a template, as the tokenizer adds it.
        """
        ids = self.encode(text)
        if self.bos_id is None:
            return ids
        if _template_text(self.tokenizer) is None and self._adds_bos and ids[:1] != [self.bos_id]:
            ids = [self.bos_id, *ids]
        if ids[:2] == [self.bos_id, self.bos_id]:
            raise PolicyError(
                f"A prompt needs one beginning-of-text token; {self.name} gives two (id "
                f"{self.bos_id}). "
                "The template writes it and the tokenizer adds it: fix the tokenizer's "
                "`tokenizer_config.json`."
            )
        return ids

    @cached_property
    def _adds_bos(self) -> bool:
        """Whether the tokenizer, called plainly, begins with BOS."""
        return list(self.tokenizer("a")["input_ids"])[:1] == [self.bos_id]

    @cached_property
    def _forces_bos(self) -> bool:
        """Whether BOS comes even where no special tokens were asked for."""
        ids = list(self.tokenizer("a", add_special_tokens=False)["input_ids"])
        return self.bos_id is not None and ids[:1] == [self.bos_id]

    @cached_property
    def _read_bytes(self) -> Callable[[int], bytes]:
        return byte_reader(self.tokenizer)


def load_policy(source: str | Path, *, device: str = "cpu", dtype: str = "float32") -> Policy:
    """Load a policy from what is on this machine.

    Args:
        source: a folder as `save_pretrained` writes it, a `.gguf` file, a hub id in the local
            cache, or a bundled policy such as `tiny:mixed`.
        device: as torch names it; `cuda` is this process's own GPU where there are several.
        dtype: one of `DTYPES`; float32 unless the numerical floor of another was looked at.

    Returns:
        The policy in evaluation mode. A `.gguf` is dequantized, its dense copy kept in the cache
        folder under the file's sha256 (first time half a minute for 135M parameters, seconds
        later), its quantization in the name.

    Raises:
        PolicyError: nothing is found there, or only pickled weights.
        SchemaError: `dtype` is not one of `DTYPES`.
    """
    require_member("dtype", dtype, DTYPES)
    path = Path(source)
    if str(source).startswith(tiny.SCHEME):
        folder, name = str(tiny.folder(str(source))), str(source)
    elif is_gguf(path):
        copy = dense_copy(path)
        folder, name = str(copy), split_name(path, copy)
    elif path.is_dir():
        _require_safetensors(path)
        folder, name = str(path), path.resolve().name
    elif path.exists() or path.suffix == ".gguf":
        raise PolicyError(
            f"A policy needs a folder, a `.gguf` file or a hub id; {path} is none of these. Check "
            "the path."
        )
    else:
        folder = name = str(source)
    return _load(folder, name=name, device=device, dtype=dtype)


def _load(folder: str, *, name: str, device: str, dtype: str) -> Policy:
    """Model and tokenizer of a folder or a cached hub id."""
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            )
            model = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=getattr(torch, dtype),
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
            )
    except (OSError, ValueError) as cause:
        raise PolicyError(
            f"A policy needs safetensors weights and a tokenizer in {folder!r} (a folder, or a hub "
            "id in the local "
            f"cache: nothing is downloaded here); transformers says: {cause} "
            f"To fetch a hub model first: hf download {folder}."
        ) from cause
    model.to(own_device(device))  # type: ignore[arg-type]  # its stub is wrapped wrongly
    return Policy(model, tokenizer, name=name, wordings=tiny.wordings(Path(folder)))


def _require_safetensors(folder: Path) -> None:
    """Refuse a folder that has only pickled weights, or a GGUF beside nothing."""
    if any(folder.glob("*.safetensors")):
        return
    there = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".gguf"))
    raise PolicyError(
        f"A policy folder needs `.safetensors` weights; {folder} has {there or 'no weights'}. "
        "Pickles (.bin, .pt) are never read: convert them with `save_pretrained`; name a `.gguf` "
        "file itself."
    )


def _require_one_stretch(base: str, text: str, insert: str, name: str) -> None:
    """Check that `text` is `base` with one stretch put in that holds the insert."""
    extra = len(text) - len(base)
    same = next((i for i, (a, b) in enumerate(zip(base, text, strict=False)) if a != b), len(base))
    if extra <= 0 or text[same + extra :] != base[same:] or insert.strip() not in text:
        raise PolicyError(
            "A prompt under a condition must be the base prompt with the condition's text put in; "
            "the template of "
            f"{name} changes more than that near character {same}. Use another placement, or strip "
            "white space "
            "at the ends of question and insert."
        )


def _template_text(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The chat template's source; None where there is none.

    Of several, the one called `default`.
    """
    template = tokenizer.chat_template
    return template.get("default") if isinstance(template, dict) else template


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
