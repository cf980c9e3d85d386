"""The table of families: a family is played, trained and exported by the real programs, or its row says why not."""

import pytest
from programs import result_of, run


@pytest.mark.long
@pytest.mark.parametrize("options", [(), ("--lora",)])
def test_a_row_says_what_succeeded(options):
    pytest.importorskip("peft")
    status, shown, errors = run("benchmarks/families", "--families", "Gemma 3", "--markdown", *options)
    assert status == 0, errors
    assert "| Gemma 3 | general | padded | yes | yes |" in shown
    found = result_of(shown)
    assert found["whole"] == found["families"] == 1 and 0.0 < found["nats_apart"] < 1e-4
