r"""Conditions of the user's own, from a YAML or JSON file or from dicts.

Reads  a list of records: name, text, and optionally family, level, frame, wording, tone, placement,
       word. A key it does not know is an error, and so is a value that is not text.
Gives  Conditions.

In `text`, {word} and the names of `conditions.KNOWN` in braces ({question}, {answer},
{wrong_answer}; {right_1}, {right_2}, {wrong_1}, {wrong_2}: responses of the group) are replaced in
one pass; every other
brace and every backslash is literal, so `\boxed{{answer}}` gives the answer in a box. There is no
way to write a literal {answer}.

Source: own work; huggingface/trl fills such templates with `str.format`, which a `\boxed{}`
    breaks.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from tokensense.errors import ConditionError
from tokensense.probes import CATALOGUE
from tokensense.probes.conditions import NONE, Condition, require_conditions

# Names become CF flag meanings, which are joined with blanks and have this alphabet.
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.+@-]+$")]
LARGEST_FILE = 2**20


class Template(BaseModel):
    """One record; the fields are those of Condition."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Name
    text: Annotated[str, StringConstraints(min_length=1)]
    family: Name = "user"
    level: Literal["pos", "neg", "none"] = "none"
    frame: Name = NONE
    wording: Name = NONE
    tone: Name = NONE
    placement: Literal["user_end", "user_start", "system"] = "user_end"
    word: str = ""


def from_dicts(records: Iterable[object], *, source: str = "templates") -> tuple[Condition, ...]:
    r"""Conditions from records.

    Args:
        records: mappings, as the module says.
        source: where they come from, for messages.

    Returns:
        Conditions in the order of the records.

    Raises:
        ConditionError: a key is unknown or missing, a value is not what it must be, a text has
            {word} and no word (or a word and no {word}), names repeat, a pair has one side twice.

    Examples:
        >>> (told,) = from_dicts([{"name": "box", "text": r"\boxed{{answer}}"}])
        >>> told.family, told.level, told.placement
        ('user', 'none', 'user_end')
    """
    found = tuple(_condition(record, f"{source}, record {i}") for i, record in enumerate(records))
    require_conditions(source, found)
    return found


def require_own_name(name: str) -> None:
    """Check the name of a probe of the user's own.

    Raises:
        ConditionError: a shipped probe has it.
    """
    if name in CATALOGUE:
        raise ConditionError(
            f"a probe of your own needs a name other than {sorted(CATALOGUE)}; it is {name!r}. "
            "Choose another."
        )


def from_file(path: str | Path) -> tuple[Condition, ...]:
    """Conditions from a `.json`, `.yaml` or `.yml` file that holds a list of records.

    Raises:
        ConditionError: the file is missing, too large, cannot be read, holds something else, or a
            record is not a condition (see `from_dicts`); the message names file and record.
    """
    path = Path(path)
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ConditionError(
                f"a file of templates of at most {LARGEST_FILE} bytes is needed; {path} has "
                f"{path.stat().st_size}. Split it."
            )
        text = path.read_text(encoding="utf-8")
        records = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, yaml.YAMLError) as cause:
        raise ConditionError(
            f"a readable YAML or JSON file of templates is needed; {path} gives: {cause}. Check "
            f"path and syntax; texts with colons or braces need quotes."
        ) from cause
    if not isinstance(records, list):
        raise ConditionError(
            f"{path} needs a list of records with the keys {sorted(Template.model_fields)}; it "
            f"holds {type(records).__name__}. Begin each record with `- name:`."
        )
    return from_dicts(records, source=str(path))


def _condition(record: object, where: str) -> Condition:
    """One record, checked."""
    try:
        template = Template.model_validate(record)
    except ValidationError as cause:
        first = cause.errors()[0]
        place = ".".join(map(str, first["loc"])) or "record"
        came = record.get(place, "nothing") if isinstance(record, Mapping) else record
        raise ConditionError(
            f"{where}, `{place}`: {first['msg']}; it is {came!r}. Keys are "
            f"{sorted(Template.model_fields)}; quote texts, names have no blanks."
        ) from cause
    if bool(template.word) != ("{word}" in template.text):
        raise ConditionError(
            f"{where}, `word`: a word is needed exactly where the text has {{word}}; the word is "
            f"{template.word!r}, the text {template.text!r}. Give both or neither."
        )
    return Condition(**template.model_dump())
