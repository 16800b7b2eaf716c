"""What each format follows, and what it cannot tell: the text of `tokensense import --formats`.

Gives  LAYOUTS: every format of traces, and every layout of problems that `generate` reads.

`tested` says what the tests' files are: published ones or excerpts of them, or made by hand after
the source named; the latter are labelled UNTESTED, as no run of the tool itself was at hand.
"""

from typing import NamedTuple

UNTESTED = "untested against real output"
MADE_BY_HAND = f"{UNTESTED}: files made by hand after the source"
PUBLISHED = "published files, or rows in their layout"
OWN = "own format"


class Layout(NamedTuple):
    """One format.

    Attributes:
        holds: `traces` or `problems`.
        follows: page or source, with its commit.
        fields: names that are read.
        cannot_tell: what no file of this format says.
        tested: on what.
    """

    holds: str
    follows: str
    fields: str
    cannot_tell: str
    tested: str


TRACES, PROBLEMS = "traces", "problems"
DECODED = "ids (text without special tokens: no end token), log-probs, finish reason"
PLAIN = Layout(
    TRACES,
    "tokensense.importing.jsonl",
    "question, text, ids, logp, reward, answer, group, name, generator, finish; any other names "
    "with --field ours=theirs",
    "steps of a training run (groups are questions); log-probs without ids; two equal samples "
    "without a name from one row written twice",
    OWN,
)
LAYOUTS: dict[str, Layout] = {
    "jsonl": PLAIN,
    "parquet": PLAIN,
    "trl": Layout(
        TRACES,
        "https://github.com/huggingface/trl/pull/4818 at 51e20987e8470a4670c74c437d32de045f56ca63",
        "step, prompt, completion, advantage (not kept), a column a reward function, log_extra "
        "columns; --field reward=, answer=",
        f"{DECODED}; two groups of one prompt in a step; which columns are rewards and their "
        "weights; training or evaluation; batches that were not the last before a logging step",
        "tested on two steps of TRL 1.16 itself (`tests/importing/make_trl.py`)",
    ),
    "verl": Layout(
        TRACES,
        "https://github.com/verl-project/verl/blob/39574b513d9b6be8ab4885326058d61f4432aeb6/"
        "verl/trainer/ppo/v1/trainer_base.py",
        "input, output, gts, score, step, uid or request_id; --field reward=, answer=",
        f"{DECODED}; without uid two groups of one prompt in a step; which tokens a tool wrote; "
        "training or validation",
        MADE_BY_HAND,
    ),
    "prime_rl": Layout(
        TRACES,
        "https://github.com/PrimeIntellect-ai/prime-rl/blob/"
        "004274ec964f016ec9b17b5ae990a4b535314ff1/src/prime_rl/trainer/rl/token_export.py",
        "schema_version 1: token_ids, loss_mask, inference_logprobs, rewards, export_step; only "
        "steps with STABLE",
        "reference answer, finish reason, two groups of one prompt in a step, temperature and "
        "top-p of the log-probs, rollouts that were filtered out, rewards of older exports",
        MADE_BY_HAND,
    ),
    "open_instruct": Layout(
        TRACES,
        "https://github.com/allenai/open-instruct/blob/00feb3a567315ffde00848c030c90613218f563f/"
        "open_instruct/rl_utils.py",
        "step, prompt_idx, prompt_tokens, response_tokens, reward, finish_reason, ground_truth, "
        "request_info, logprobs; model_name of the metadata",
        "raw or processed log-probs, temperature, top-p; answers that were tokenized; steps that a "
        "restarted run wrote twice with other samples",
        MADE_BY_HAND,
    ),
    "processbench": Layout(
        TRACES,
        "https://huggingface.co/datasets/Qwen/ProcessBench",
        "id, problem, steps, label, final_answer_correct, generator",
        f"{DECODED}; reference answer",
        PUBLISHED,
    ),
    "bigbench_mistake": Layout(
        TRACES,
        "https://github.com/WHGTyen/BIG-Bench-Mistake",
        "input, steps, answer, target, mistake_index",
        DECODED,
        PUBLISHED,
    ),
    "gsm8k_solutions": Layout(
        TRACES,
        "https://github.com/openai/grade-school-math",
        "problem_id, question, ground_truth, solutions (model, solution, is_correct)",
        DECODED,
        PUBLISHED,
    ),
    "gsm8k": Layout(
        PROBLEMS,
        "https://github.com/openai/grade-school-math",
        "question, answer (#### 1,234)",
        "the split",
        PUBLISHED,
    ),
    "math": Layout(
        PROBLEMS,
        "https://huggingface.co/datasets/HuggingFaceH4/MATH-500",
        "problem, answer or boxed solution, unique_id",
        "equal answers written differently",
        PUBLISHED,
    ),
    "aime": Layout(
        PROBLEMS,
        "https://huggingface.co/datasets/math-ai/aime24 and others; key case varies",
        "problem or question, answer, id",
        "the year",
        PUBLISHED,
    ),
    "dapo": Layout(
        PROBLEMS,
        "https://huggingface.co/datasets/BytedTsinghua-SIA/DAPO-Math-17k",
        "prompt, reward_model.ground_truth, extra_info.index",
        "which of about 100 copies of a problem is the first",
        PUBLISHED,
    ),
}


def described() -> list[str]:
    """One block a format, as lines of text."""
    lines = []
    for name, layout in LAYOUTS.items():
        command = "import --format" if layout.holds == TRACES else "generate --task"
        lines += [
            f"{name}  ({layout.holds}: {command} {name})",
            f"  follows      {layout.follows}",
            f"  fields       {layout.fields}",
            f"  cannot tell  {layout.cannot_tell}",
            f"  tested       {layout.tested}",
        ]
    return lines
