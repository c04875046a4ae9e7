from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.cluster.collectives import ring_terms
from syncline.cluster.fitting import LinkSample, fit_link, nonnegative_least_squares
from syncline.cluster.probe_points import PROBED
from syncline.cluster.topology import Slowdown

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)


def samples_of(latency_s: float, bytes_per_s: float, members: int, factor=lambda index: 1.0):
    samples = []
    for kind in PROBED:
        for nbytes in SIZES:
            steps, fraction = ring_terms(kind, members)
            exact = steps * latency_s + fraction * nbytes / bytes_per_s
            seconds = exact * factor(len(samples))
            samples.append(LinkSample(kind=kind, members=members, nbytes=nbytes, seconds=seconds))
    return samples


@given(st.floats(1e-6, 1e-2), st.floats(1e7, 1e12), st.integers(2, 16))
def test_exact_times_give_their_figures_back(latency_s, bytes_per_s, members):
    fit = fit_link(samples_of(latency_s, bytes_per_s, members))
    assert fit.latency_s == pytest.approx(latency_s, rel=1e-4)
    assert fit.error < 1e-6
    assert fit.slowdown == Slowdown()
    # At the fastest links all messages here are latency: their bandwidth cannot be told exactly.
    assert fit.bytes_per_s == pytest.approx(bytes_per_s, rel=1e-2)


@given(st.integers(0, 2**32 - 1))
def test_noisy_times_give_figures_that_are_near(seed):
    noise = np.random.default_rng(seed).uniform(0.9, 1.1, size=len(PROBED) * len(SIZES))
    fit = fit_link(samples_of(1e-4, 1e9, 4, lambda index: noise[index]))
    assert fit.latency_s == pytest.approx(1e-4, rel=0.2)
    assert fit.bytes_per_s == pytest.approx(1e9, rel=0.2)
    assert fit.error < 0.15
    assert set(fit.error_by_kind) == set(PROBED)


@given(st.integers(0, 2**32 - 1))
def test_wild_times_put_some_collective_on_the_line(seed):
    """If all were slower than it, the bandwidth would be one that nothing gets."""
    noise = np.exp(np.random.default_rng(seed).normal(size=len(PROBED) * len(SIZES)))
    fit = fit_link(samples_of(1e-4, 1e9, 2, lambda index: noise[index]))
    assert 1.0 in [getattr(fit.slowdown, kind) for kind in PROBED]


def test_a_collective_that_a_library_does_slowly_gets_a_factor():
    def slow_scatter(index: int) -> float:
        return 2.5 if PROBED[index // len(SIZES)] == "reduce_scatter" else 1.0

    fit = fit_link(samples_of(1e-4, 1e9, 2, slow_scatter))
    assert fit.slowdown.reduce_scatter == pytest.approx(2.5, rel=0.05)
    assert fit.slowdown == Slowdown(reduce_scatter=fit.slowdown.reduce_scatter)
    assert fit.bytes_per_s == pytest.approx(1e9, rel=0.05)
    assert fit.error < 0.05


def test_a_collective_that_does_not_fit_shows():
    def erratic_send(index: int) -> float:
        kind, size = divmod(index, len(SIZES))
        return (1, 1, 10, 10)[size] if PROBED[kind] == "send" else 1.0

    fit = fit_link(samples_of(1e-4, 1e9, 2, erratic_send))
    assert fit.error_by_kind["send"] == max(fit.error_by_kind.values()) > 0.3


def test_times_that_do_not_grow_still_give_a_bandwidth():
    samples = [LinkSample(kind="send", members=2, nbytes=size, seconds=1e-3) for size in SIZES]
    falling = [LinkSample(kind="send", members=2, nbytes=size, seconds=1 / size) for size in SIZES]
    for given_samples in (samples, falling):
        fit = fit_link(given_samples)
        assert np.isfinite(fit.bytes_per_s)
        assert fit.bytes_per_s > 0
        assert fit.latency_s >= 0


def test_nothing_to_fit_is_a_bug():
    with pytest.raises(ValueError, match="nothing to fit"):
        fit_link([])


@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_least_squares_are_not_negative_and_beat_any_other_point(seed, unknowns):
    random = np.random.default_rng(seed)
    matrix = random.normal(size=(8, unknowns))
    target = random.normal(size=8)
    found = nonnegative_least_squares(matrix, target)
    assert (found >= 0).all()
    others = np.abs(random.normal(size=(200, unknowns))) * random.choice([0, 1], size=(200, unknowns))
    errors = np.linalg.norm(others @ matrix.T - target, axis=1)
    assert np.linalg.norm(matrix @ found - target) <= errors.min() + 1e-9
