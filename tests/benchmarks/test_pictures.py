"""The pictures of README and documentation: they can be drawn from the committed results."""

import pytest

from benchmarks import pictures


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_drawn_from_the_results(name, tmp_path):
    drawn = pictures.draw(name, "light", tmp_path).read_text()
    assert "<path" in drawn
    assert "<text" in drawn
    assert (pictures.OUT / f"{name}_light.svg").exists()
