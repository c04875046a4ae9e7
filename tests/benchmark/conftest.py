"""What the tests of benchmarks share."""

import pytest
from measured_rows import failed_row, make_row


@pytest.fixture
def rows():
    """Strategies of every sort: faster and slower, inexact, failed."""
    return [
        make_row("single", step_s=0.15, peak_memory_bytes=[90_000_000], sent_bytes={"node": 0, "network": 0}),
        make_row("data", step_s=0.1),
        make_row("planned", step_s=0.05),
        make_row("sharded", step_s=0.2, peak_memory_bytes=[40_000_000, 41_000_000]),
        make_row("local", step_s=0.04, exact=False, loss=3.4),
        failed_row("pipeline"),
    ]
