"""Putting one rank's step together: where the model is cut, who has which block, what goes between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from syncline.graph.cutting import CutPoint, Cutting
from syncline.graph.opgraph import OpGraph, resolve
from syncline.graph.opgraph import Tensor as GraphTensor
from syncline.planning.stages import candidates, group
from syncline.strategies.blocks import find_blocks
from syncline.strategies.local.block import Block, Rule
from syncline.strategies.local.building import BlockPlan, BlockPlans, owners
from syncline.strategies.local.refresh import Refresh
from syncline.strategies.local.shared import Forwarding, Sharing, plan_sharing
from syncline.strategies.local.step import LocalStep, StepParts
from syncline.strategies.local.transport import Transport, open_groups
from syncline.strategies.protocol import Job
from syncline.strategies.stages.holding import keep_only, model_state
from syncline.strategies.stages.layout import Layout

_GROUPS = 5
"""Activations, markers, cotangents, forwarded weights, refreshed weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user chose, beyond the blocks themselves."""

    rule: Rule
    queue: int
    refresh: int


def layer_points(cutting: Cutting, model: nn.Module) -> list[CutPoint]:
    """The points after each repeated layer of a model but the last: the blocks of `greedy`."""
    paths = {id(module): path for path, module in model.named_modules()}
    ends = []
    for layer in find_blocks(model):
        path = paths[id(layer)]
        inside = [op.id for op in cutting.graph.ops if op.module == path or op.module.startswith(f"{path}.")]
        ends += [max(inside)] if inside else []
    known = {point.after: point for point in candidates(cutting)}
    return [known[end] for end in sorted(ends)[:-1] if end in known]


def make_step(job: Job, plans: BlockPlans, layout: Layout, settings: Settings, rows: int) -> LocalStep:
    """One rank's step; every rank must call this."""
    graph = plans.training.graph
    places = group(plans.costs(), layout.depth)
    owned_by = owners(plans.blocks, job.model)
    sharing = plan_sharing(plans.blocks, owned_by, places)
    seed = _common_seed(job.device)
    here = [plan for plan in plans.blocks if places[plan.index] == layout.place]
    builder = _Builder(job, plans, owned_by, sharing, layout, seed)
    blocks = [builder.block(plan) for plan in here]
    mine = [name for name, block in owned_by.items() if places[block] == layout.place]
    keep_only(job.model, job.optimizer, mine)
    groups = open_groups(layout, _GROUPS)
    return LocalStep(
        job,
        StepParts(
            blocks=blocks,
            plans=plans,
            rule=settings.rule,
            layout=layout,
            transport=_transport(job, layout, groups[:3], here, settings),
            forwarding=builder.forwarding(groups[3], settings.queue),
            refresh=builder.refresh(groups[4], settings.refresh),
            cuts=tuple(plan.cut for plan in plans.blocks[:-1]),
            rows=rows,
            seed=seed,
            is_random=_is_random(graph),
            notes=_notes(plans.blocks, places),
            lead=(layout.depth - 1) * (2 * settings.queue + 1),
        ),
    )


class _Builder:
    """Gives each block the tensors that it owns, and copies of those that another owns."""

    def __init__(
        self,
        job: Job,
        plans: BlockPlans,
        owned_by: dict[str, int],
        sharing: Sharing,
        layout: Layout,
        seed: int,
    ) -> None:
        self._job = job
        self._plans = plans
        self._owned_by = owned_by
        self._layout = layout
        self._sharing = sharing
        self._seed = seed
        self._whole = model_state(job.model)
        before = sharing.forward[layout.place - 1] if layout.place else ()
        self._received = {name: self._whole[name].detach().clone() for name in before}
        self._refreshed = {
            name: self._whole[name].detach().clone() for name in sharing.refreshed[layout.place]
        }

    def block(self, plan: BlockPlan) -> Block:
        owned = [name for name in plan.reads if self._owned_by[name] == plan.index]
        state = {name: self._tensor(name, plan.index) for name in plan.reads}
        return self._plans.make(
            plan,
            state,
            owned,
            self._whole,
            seed=self._seed,
            recompute=self._job.options.activation_checkpointing,
        )

    def forwarding(self, group: dist.ProcessGroup, queue: int) -> Forwarding:
        layout = self._layout
        outgoing = self._sharing.forward[layout.place] if not layout.is_last else ()
        return Forwarding(
            group,
            self._received,
            {name: self._received.get(name, self._whole[name]) for name in outgoing},
            before=layout.rank_at(layout.place - 1) if layout.place else None,
            after=None if layout.is_last else layout.rank_at(layout.place + 1),
            incoming=list(self._received),
            outgoing=outgoing,
            length=queue,
        )

    def refresh(self, group: dist.ProcessGroup, period: int) -> Refresh:
        names = {name for place in self._sharing.refreshed for name in place}
        state = {name: self._whole[name] for name in names}
        readers = self._sharing.refreshed
        return Refresh(group, self._layout, readers, self._refreshed, state, period=period)

    def _tensor(self, name: str, block: int) -> Tensor:
        owner = self._owned_by[name]
        if owner == block:
            return self._whole[name]
        if owner > block:
            return self._refreshed[name]
        if name in self._received:
            return self._received[name]
        return self._whole[name].detach()


def _transport(
    job: Job,
    layout: Layout,
    groups: Sequence[dist.ProcessGroup],
    here: Sequence[BlockPlan],
    settings: Settings,
) -> Transport:
    first, last = here[0], here[-1]
    rule = settings.rule
    entry = first.training.layers.entry if layout.place else None
    exit = None if layout.is_last else last.training.layers.exit
    return Transport(
        layout,
        groups,
        entry=None if entry is None else _like(entry, job.device),
        exit=None if exit is None else _like(exit, job.device),
        queue=settings.queue,
        sends_back=rule.reached_back(first.index),
        gets_back=0 if layout.is_last else rule.reached_back(last.index + 1),
    )


def _like(tensor: GraphTensor, device: torch.device) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)


def _common_seed(device: torch.device) -> int:
    seed = torch.tensor(torch.initial_seed() % 2**62, device=device)
    dist.broadcast(seed, src=0)
    return int(seed.item())


def _is_random(graph: OpGraph) -> bool:
    return any(torch.Tag.nondeterministic_seeded in resolve(op.target).tags for op in graph.ops)


def _notes(plans: Sequence[BlockPlan], places: Sequence[int]) -> tuple[str, ...]:
    """What the user should know of how the model was cut."""
    blocks, stages = (
        f"{count} {what}" + "s" * (count > 1)
        for count, what in ((len(plans), "block"), (max(places) + 1, "stage"))
    )
    notes = [f"local: {blocks} on {stages}" + ("" if len(plans) > 1 else ": plain training")]
    heads: dict[tuple[str, str], list[str]] = {}
    for plan in plans:
        if plan.head is not None:
            shown = f"after {plan.cut} {plan.head.share:.0%}"
            heads.setdefault((plan.head.kind, plan.head.why), []).append(shown)
    for (kind, why), where in heads.items():
        notes.append(f"head {kind} ({why}), FLOPs as a share of its block's: {', '.join(where)}")
    return tuple(notes)
