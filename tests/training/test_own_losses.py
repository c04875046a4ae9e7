"""Agreeing again on steps whose outcome went with a lost node."""

from __future__ import annotations

import torch
import torch.distributed as dist

from syncline.training.own_losses import OwnLosses
from syncline.training.signals import Outcome


def agree_anew() -> list[Outcome]:
    """Two ranks: the first is a step ahead, and asks for more steps than are kept anywhere."""
    rank = dist.get_rank()
    own = OwnLosses(steps=3)
    for step in range(1, 8 - rank):
        own.note(step, torch.tensor(float(10 * step + rank)))
        if step == 6:
            own.note_evaluation(step, torch.tensor(2.0 + rank))
    # Only what the first rank has not heard of counts.
    return list(own.agree({7: 0, 6: 0, 5: 0, 1: 0} if rank == 0 else {2: 0}))


def test_those_who_go_on_agree_on_their_own_means(run_ranks):
    first, second = run_ranks(agree_anew, 2)
    assert first == second
    # The first forgot step 4 and what is before it; the second has not made step 7.
    assert [(one.step, one.loss, one.eval_loss) for one in first] == [
        (5, 50.5, None),
        (6, 60.5, 2.5),
        (7, 70.0, None),
    ]
    assert not any(one.stop or one.regroup for one in first)
