"""The study of the sampler's speed runs and prints a ratio to transformers for each batch size."""

from dataclasses import replace

from studies import sampler_speed
from tests.test_study import words_policy


def test_a_tiny_run_prints_the_ratios(tmp_path, capsys):
    policy = words_policy("arithmetic")
    policy.model.save_pretrained(tmp_path / "policy")
    policy.tokenizer.save_pretrained(tmp_path / "policy")
    config = replace(sampler_speed.TINY, model=str(tmp_path / "policy"), max_new_tokens=3)
    sampler_speed.main(config)
    lines = capsys.readouterr().out.splitlines()
    ratios = [line for line in lines if line.startswith("tokensense / transformers")]
    assert len(ratios) == 4
    assert all(float(line.split(": ")[1].split()[0]) > 0 for line in ratios)
    assert "4 x 2 responses" in lines[0]
