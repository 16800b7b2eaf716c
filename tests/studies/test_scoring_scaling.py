"""The study of growth prints a line for each size."""

from studies.scoring_scaling import main
from tests.models.zoo import tiny_policy


def test_each_size_has_a_line_with_its_tokens(capsys):
    main(tiny_policy("llama"), [1, 2], [20])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" tokens")[0].split()[-1] for line in lines] == ["960", "1920", "20"]
    assert all("MiB above the start" in line for line in lines)
