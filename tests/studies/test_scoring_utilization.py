"""The study of a processor's use prints its passes; on a CPU without a vendor's number."""

from argparse import Namespace

from studies.scoring_utilization import main


def test_a_pass_has_a_line_with_tokens_and_shares(capsys):
    main(Namespace(device="cpu", tokens_per_row=1024, groups=1, repeats=2, tiny=True))
    head, *lines = capsys.readouterr().out.splitlines()
    assert "path trie" in head
    # One group of 8 responses of 16 tokens under three conditions.
    assert [line.split(" in ")[0] for line in lines] == ["384 tokens"] * 2
    assert all(line.endswith("% of a square product") and "MFU" not in line for line in lines)
