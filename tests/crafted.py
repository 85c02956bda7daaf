"""Hypothesis for files with any content, which are read or clearly refused."""

import hypothesis


def crafted_examples(count):
    """Draw a number of examples, the same in every run; shrinking them would take minutes."""
    return hypothesis.settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
